"""Typical mistakes of lab 2."""

from tests.lessons.mistakes import Mistake

ADD = "chunks[(r - s - 1) % N].add_(received.vector)"

MEAN = "vector.div_(N)"
NO_MEAN = (MEAN, 'raise NotImplementedError("the mean")')
SHARE_ONLY = "    for s in range(N - 1):\n        sent.append(transport.isend(chunks[(r + 1 - s)"
HOLE = '    raise NotImplementedError("share-only")\n'

MISTAKES = [
    Mistake("adds_finished_chunks", "wrong", 20,
            "N = 3, step 4: rank 0 sent chunk 0 to rank 1 that holds 2 x rank 0 + rank 1 + rank 2; expected rank 0 "
            "+ rank 1 + rank 2; in share-only a chunk is finished: copy it, do not add",
            ('transport.recv(left, "share-only").copy_to(chunks[(r - s) % N])',
             'with transport.recv(left, "share-only") as received:\n'
            "            chunks[(r - s) % N].add_(received.vector)")),
    Mistake("begins_with_the_wrong_chunk", "wrong", 20, "N = 3, step 3: rank 0 sent chunk 0 to rank 1; expected chunk",
            ("r + 1 - s", "r - s"), ("(chunks[(r - s) % N])", "(chunks[(r - s - 1) % N])")),
    Mistake("changes_what_it_sends", "damage", 40, "changed it before rank 2 had received it: wait for its Work",
            ("    for work in sent:  # until its neighbour has read what it sent\n        work.wait()\n", "")),
    Mistake("chunks_too_few", "raised", 30, "IndexError: tuple index out of range, line 15 of chunks_too_few.py",
            ("torch.tensor_split", "torch.chunk")),
    Mistake("cuts_by_tensor", "costly", 80, "the chunks differ in length: 28000 elements in the longest, 10000",
            ("chunks = torch.tensor_split(vector, N)",
             "large = int(0.7 * len(vector))\n"
            "    chunks = [vector[:large], *torch.tensor_split(vector[large:], N - 1)] if N > 1 else [vector]")),
    Mistake("forgets_to_divide", "wrong", 40, "rank 0 ends with the sum; expected the mean: divide by N",
            ("    vector.div_(N)\n", "")),
    Mistake("hops_once", "wrong", 0, "without the part of rank 1; expected the mean of all 3 ranks",
            """def all_reduce(transport, vector):
    N, r = transport.world_size, transport.rank
    right, left = (r + 1) % N, (r - 1) % N
    work = transport.isend(vector.clone(), right, "vector")
    with transport.recv(left, "vector") as received:
        vector.add_(received.vector)
    work.wait()
    vector.div_(N)
"""),
    Mistake("returns_a_new_vector", "returned", 0, "write the mean into `vector`, in place",
            ("chunks = torch.tensor_split(vector, N)",
             "vector = vector.clone()\n    chunks = torch.tensor_split(vector, N)"),
            ("vector.div_(N)", "return vector / N")),
    Mistake("sends_whole_vectors", "costly", 80, "sends the whole vector at once; bytes of a rank: 480000; the best kn",
            """def all_reduce(transport, vector):
    N, r = transport.world_size, transport.rank
    right, left = (r + 1) % N, (r - 1) % N
    passing = vector.clone()
    for _ in range(N - 1):
        transport.isend(passing, right, "vector")
        with transport.recv(left, "vector") as received:
            passing.copy_(received.vector)
        vector.add_(passing)
    vector.div_(N)
"""),
    Mistake("waits_before_it_receives", "deadlock", 0,
            "rank 0 waits for the release of 'share-reduce' by rank 1; rank 1 waits for the release of 'share-reduce' "
            "by rank 2; rank 2 waits for the release of 'share-reduce' by rank 0",
            ('sent.append(transport.isend(chunks[(r - s) % N], right, "share-reduce"))',
             'transport.isend(chunks[(r - s) % N], right, "share-reduce").wait()')),
    Mistake("adds_to_what_it_sends", "wrong", 0,
            "N = 3, step 1: rank 1 added what came in (chunk 0) to chunk 1, which it is just sending; expected: to "
            "chunk 0", ("chunks[(r - s - 1) % N].add_", "chunks[(r - s) % N].add_")),
    Mistake("never_releases", "deadlock", 40,
            "; rank 2 has received 'share-reduce', but not released it: use `with transport.recv(...) as received`, or",
            ('        with transport.recv(left, "share-reduce") as received:\n', ""),
            ("    chunks[(r - s - 1) % N].add_(received.vector)",
             'chunks[(r - s - 1) % N].add_(transport.recv(left, "share-reduce").vector)')),
    Mistake("uses_what_it_has_released", "wrong", 0, "; NaN is what received.vector holds after its release",
            (ADD, f"pass\n        {ADD}")),
    Mistake("takes_n_steps", "raised", 30, "; N = 1: a rank alone has no neighbour, and takes N - 1 = 0 steps",
            ('for s in range(N - 1):\n        sent.append(transport.isend(chunks[(r - s)',
             'for s in range(N):\n        sent.append(transport.isend(chunks[(r - s)')),
    Mistake("takes_one_step", "hole", 0,
            "the rest; the messages so far are right, but only 1 of each rank; share-reduce sends N - 1 = 2",
            (ADD, f'{ADD}\n        raise NotImplementedError("the rest")')),
    Mistake("still_without_the_mean", "hole", 40, "line 23 of still_without_the_mean.py: the mean; the messages so far "
            "are right", NO_MEAN),
    Mistake("still_without_the_mean_and_wrong", "hole", 20,
            "the mean; but first, N = 3, step 3: rank 0 sent chunk 0 to rank 1; expected chunk 1",
            NO_MEAN, ("r + 1 - s", "r - s"), ("(chunks[(r - s) % N])", "(chunks[(r - s - 1) % N])")),
    Mistake("still_without_share_only", "hole", 20, "still to be written, line 18 of",
            (SHARE_ONLY, f"{HOLE}{SHARE_ONLY}")),
    # What Python names in its own words gets a hint.
    Mistake("assigns_to_a_tuple", "raised", 0, "in place, chunks[i].add_(received.vector)",
            (ADD, "chunks[(r - s - 1) % N] += received.vector")),
    Mistake("adds_the_message", "raised", 0, "; recv returns a message; the tensor in it is received.vector",
            (ADD, "chunks[(r - s - 1) % N].add_(received)")),
    Mistake("divides_a_number", "raised", 0, "`//` divides whole numbers",
            (ADD, "chunks[(r - s) % N - s / 1].add_(received.vector)")),
    Mistake("adds_a_shorter_one", "raised", 0, "; the two differ in length: are they chunks",
            (ADD, "chunks[0].add_(received.vector[1:])")),
    Mistake("makes_a_new_vector", "wrong", 40,
            "divide by N, once; line 23 of makes_a_new_vector.py (vector = vector / N) makes a new tensor, and the "
            "caller's vector stays as it is: change it in place, vector.copy_(...)", (MEAN, "vector = vector / N")),
    Mistake("forgets_the_tag", "raised", 20, "a message has a tag: isend(tensor, dst, tag), recv(src, tag)",
            ('right, "share-only")', "right)")),
]  # fmt: skip
