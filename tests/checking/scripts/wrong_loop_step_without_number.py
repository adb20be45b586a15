# finds: gradient is not the mean: .*give step\(\) the number

from common_loops import batches, begin, net
from torch.nn import functional as F

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, n = begin(transport, "param_server", model)
    if optimizer.is_server:
        optimizer.serve()
        return
    for x, y in batches(worker, n, size=4 + 2 * worker):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if optimizer.strategy.transport.steps == 5:
            break
    optimizer.finish()


if __name__ == "__main__":
    launch(work, 3)
