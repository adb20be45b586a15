# mypy: ignore-errors
"""Starts its ranks, which share what the argument names, and prints what it gets from them."""

import os
import queue
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

name, N = sys.argv[1], 3


def begin(rank):
    """Join the others; return the sum of all ranks."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    dist.init_process_group("gloo", rank=rank, world_size=N)
    total = torch.full((2,), float(rank))
    dist.all_reduce(total)
    return total


def put(rank, results):
    """Return a result by a queue."""
    total = begin(rank)
    time.sleep(N - rank)
    results.put((rank, total))


def put_and_stay(rank, results, done):
    """Return a result, and stay until it has been read."""
    put(rank, results)
    assert done.wait(0.5) == (rank == 0)
    done.wait()


def work(rank, tasks, results):
    """Do what the starting process asks for."""
    begin(rank)
    while (task := tasks.get()) is not None:
        results.put(task * task)


def pass_on(rank, ends):
    """Send a number around a ring of pipes."""
    begin(rank)
    if rank == 0:
        ends[0][0].send(5)
    number = ends[rank - 1][1].recv()
    if rank:
        ends[rank][0].send(number + 1)
    else:
        print(number)


def count(rank, counter, found, counts):
    """Count, and note a result by name."""
    begin(rank)
    counts[rank] = rank
    for _ in range(4):
        with counter.get_lock():
            counter.value += 1
    found[rank] = {"rank": rank}


def fail(rank, results):
    """Fail on one rank."""
    begin(rank)
    if rank == 1:
        raise ValueError("no")


def start(run, *arguments):
    """Start a process for each rank."""
    processes = [mp.get_context("spawn").Process(target=run, args=(rank, *arguments)) for rank in range(N)]
    for process in processes:
        process.start()
    return processes


def join(processes):
    """Wait for processes."""
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * N


if __name__ == "__main__":
    results = mp.SimpleQueue() if name == "simple queue" else mp.Queue()
    if name in ("queue", "simple queue"):
        processes = start(put, results)
        print([(rank, total.tolist()) for rank, total in (results.get() for _ in range(N))])
        join(processes)
    elif name == "after join":
        join(start(put, results))
        found = []
        while not results.empty():
            found.append(results.get()[0])
        print(found)
    elif name == "polls":
        processes = start(put, results)
        while any(process.is_alive() for process in processes):
            time.sleep(0.1)
        print(results.qsize())
    elif name == "spawn":
        mp.spawn(put, (results,), nprocs=N)
        print(sorted(results.get()[0] for _ in range(N)))
    elif name == "event":
        done = mp.Event()
        processes = start(put_and_stay, results, done)
        found = [results.get()[0] for _ in range(N)]
        done.set()
        join(processes)
        print(found, done.is_set())
    elif name == "tasks":
        tasks = mp.Queue()
        processes = start(work, tasks, results)
        for task in [1, 2, 3, 4, None, None, None]:
            tasks.put(task)
        join(processes)
        print(sorted(results.get() for _ in range(4)))
    elif name == "pipes":
        join(start(pass_on, [mp.Pipe() for _ in range(N)]))
    elif name == "manager":
        with mp.Manager() as manager:
            counter, found, counts = mp.Value("i", 2), manager.dict(first=0), mp.Array("i", N)
            join(start(count, counter, found, counts))
            print(counter.value, sorted(found.items(), key=str), counts[:])
    elif name == "gets too often":
        processes = start(put, results)
        for _ in range(N + 1):
            results.get()  # one more than there are
    elif name == "limit":
        try:
            results.get(timeout=5)
        except queue.Empty:
            print("empty")
        join(start(put, results))
    elif name == "fails":
        processes = start(fail, results)
        try:
            results.get()
        except Exception:
            print("caught")
    elif name == "helper":
        begin(int(os.environ["RANK"]))
        process = mp.get_context("fork").Process(target=results.put if len(sys.argv) > 2 else time.sleep, args=(0,))
        process.start()
        process.join(100)
        print(process.exitcode)
