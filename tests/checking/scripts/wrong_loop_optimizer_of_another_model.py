# finds: parameter does not learn: .*the optimizer steps what no model uses

from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, n = begin(transport, "ring_all_reduce", net(seed=1))
    train(optimizer, model, batches(worker, n))


if __name__ == "__main__":
    launch(work, 3)
