"""Typical mistakes of lab 1."""

from tests.lessons.mistakes import Mistake

ADD = "total.add_(received.vector)"
RECEIVE = f'        with transport.recv(worker, "gradient") as received:\n            {ADD}'
SEND_G = 'transport.isend(g, SERVER, "gradient")'
SEND_X = 'transport.isend(x, worker, "parameters")'
COPY_NOT = ('    transport.recv(SERVER, "parameters").copy_to(x)\n', "")
UPDATE = "    update(total / len(transport.peers))\n"
UPDATE_AND_SEND = f"{UPDATE}    for worker in transport.peers:\n        {SEND_X}\n"

MISTAKES = [
    Mistake("divides_by_all_ranks", "wrong", 45, "the server divided by 3; there are 2 gradients",
            ("len(transport.peers)", "transport.world_size")),
    Mistake("does_not_copy", "unreleased", 45, "step 1: rank 1 received x of rank 0 and never released it: use `with",
            ('transport.recv(SERVER, "parameters").copy_to(x)', 'x = transport.recv(SERVER, "parameters").vector')),
    Mistake("leaves_one_out", "wrong", 45, "the server's gradient was g of rank 1; expected the mean of all 2",
            ("total.add_(received.vector)\n    update(total / len(transport.peers))",
             "if worker == 1:\n                total.add_(received.vector)\n    update(total)")),
    Mistake("replies_to_one", "deadlock", 15, "the server has not sent x to rank 1, but to others",
            ('for worker in transport.peers:\n        transport.isend(x, worker, "parameters")',
             'transport.isend(x, worker, "parameters")')),
    Mistake("sends_the_old_x", "wrong", 45, "rank 1 holds the x from before the step",
            ("total.add_(received.vector)", "total.add_(received.vector)\n    old = x.clone()"),
            ('        transport.isend(x, worker, "parameters")',
             '        transport.isend(old, worker, "parameters")')),
    Mistake("takes_the_sum", "wrong", 45, "N = 3, step 1: the server took the sum of the gradients; expected their mea",
            ("(total / len(transport.peers))", "(total)")),
    Mistake("updates_on_the_worker", "wrong", 45, "rank 1 has made a step with its own gradient besides",
            ('transport.recv(SERVER, "parameters").copy_to(x)',
             'transport.recv(SERVER, "parameters").copy_to(x)\n    x.sub_(0.1 * g)')),
    Mistake("waits_for_x_first", "deadlock", 0,
            "rank 0 waits for 'gradient' from rank 1; rank 1 waits for 'parameters' from rank 0; rank 2 waits for "
            "'parameters' from rank 0; no worker has sent",
            """def work(transport, x, g):
    transport.recv(SERVER, "parameters").copy_to(x)
    transport.isend(g, SERVER, "gradient")
"""),
    Mistake("never_receives_x", "unread", 15,
            "step 1: rank 1 ended its step without receiving the x that rank 0 sent it", COPY_NOT),
    Mistake("never_receives_x_and_is_waited_for", "unread", 15, "the x that rank 0 sent it: work must receive it",
            COPY_NOT, (SEND_X, f"{SEND_X}.wait()")),
    Mistake("receives_from_one", "unread", 45,
            "step 1: rank 0 never received g of rank 2: receive from every rank of transport.peers",
            ("transport.peers:\n        with", "transport.peers[:1]:\n        with")),
    Mistake("sends_g_twice", "unread", 45, "step 1: rank 1 sent rank 0 2 messages 'gradient'; the server received 1",
            (SEND_G, f"{SEND_G}\n    {SEND_G}")),
    Mistake("sends_g_to_all", "unread", 45,
            "step 1: rank 1 sent g to rank 2, which never receives it: send it to rank 0 only",
            (SEND_G, 'for worker in transport.peers:\n        transport.isend(g, worker, "gradient")')),
    Mistake("answers_each_g", "wrong", 15, "step 1: the server made 2 updates; expected 1, with the mean",
            (ADD, f"update(received.vector)\n        {SEND_X}"), (UPDATE_AND_SEND, "")),
    Mistake("updates_what_it_has_sent", "wrong", 45, "step 1: rank 0 sent x and then updated it: send x after the upda",
            (UPDATE_AND_SEND, f"    for worker in transport.peers:\n        {SEND_X}\n{UPDATE}")),
    Mistake("changes_what_it_has_sent", "wrong", 45, "rank 0 sent the new x, and then changed it",
            (SEND_X, f"{SEND_X}\n    x.zero_()")),
    Mistake("sums_into_what_it_received", "damage", 15,
            "rank 0 wrote into received.vector, which is rank 1's g: write into a vector of your own",
            (ADD, f"{ADD}\n            received.vector.add_(1)")),
    Mistake("uses_what_it_has_released", "update", 15,
            "update was given NaN, which is what received.vector holds after its release",
            (ADD, f"pass\n        {ADD}")),
    Mistake("never_releases", "unreleased", 45,
            "step 1: rank 0 received g of rank 1 and never released it: use `with transport.recv(...) as received`",
            (RECEIVE, '        total.add_(transport.recv(worker, "gradient").vector)')),
    Mistake("takes_what_update_returns", "raised", 15,
            "isend(tensor, dst, tag) was given None, which is what functions that work in place return",
            (UPDATE, f"    x = {UPDATE.lstrip()}")),
    Mistake("swaps_the_arguments", "raised", 15, "isend(tensor, dst, tag): dst is a Tensor; expected",
            ("isend(x, worker,", "isend(worker, x,")),
]  # fmt: skip
