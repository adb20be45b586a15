"""Typical mistakes of lab 2: the kind of the verdict on each, and what must stand in its line."""

EXPECTED = {
    "adds_finished_chunks": (
        "wrong",
        "N = 3, step 4: rank 0 sent chunk 0 to rank 1 that holds 2 x rank 0 + rank 1 + rank 2; expected rank 0 + "
        "rank 1 + rank 2; in share-only a chunk is finished: copy it, do not add",
    ),
    "adds_what_was_added": ("wrong", "rank 0 ends with (rank 0 + rank 1 + 2 x rank 2) / 3 in chunk 0"),
    "begins_with_the_wrong_chunk": ("wrong", "N = 3, step 3: rank 0 sent chunk 0 to rank 1; expected chunk 1"),
    "changes_what_it_sends": ("damage", "changed it before rank 2 had received it: wait for its Work"),
    "chunks_too_few": ("raised", "IndexError: tuple index out of range, line 14 of chunks_too_few.py"),
    "cuts_by_tensor": ("costly", "the chunks differ in length: 28000 elements in the longest, 10000"),
    "forgets_to_divide": ("wrong", "rank 0 ends with the sum; expected the mean: divide by N"),
    "hops_once": ("wrong", "without the part of rank 1; expected the mean of all 3 ranks"),
    "returns_a_new_vector": ("returned", "write the mean into `vector`, in place"),
    "sends_whole_vectors": ("costly", "sends the whole vector at once; bytes of a rank: 480000; the best known"),
    "waits_before_it_receives": (
        "deadlock",
        "rank 0 waits for rank 1 (to read what it sent), which waits for rank 2 (to read what it sent), which "
        "waits for rank 0 (to read what it sent)",
    ),
}
