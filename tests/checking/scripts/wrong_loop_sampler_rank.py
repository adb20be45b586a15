# finds: samples overlap: .*the rank of its process

from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport):
    model = net()
    optimizer, _worker, n = begin(transport, "local_sgd", model)
    train(optimizer, model, batches(0, n))


if __name__ == "__main__":
    launch(work, 3)
