"""The clock of this machine.

Nothing else here imports `time`: everybody asks the transport for the time, so that a transport may keep its own.
These are the functions of `time` themselves, since every message asks for the time several times.
"""

import time

now = time.perf_counter  # seconds of a clock that all processes of this machine share
sleep = time.sleep
cpu_seconds = time.thread_time  # seconds that the calling thread has computed
