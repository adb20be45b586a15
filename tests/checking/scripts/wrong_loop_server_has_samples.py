# finds: samples are missing: no rank took 20 of 60

from common_loops import batches, begin, net, train

from gradwire import launch


def work(transport):
    model = net()
    optimizer, worker, _n = begin(transport, "param_server", model)
    train(optimizer, model, batches(worker, transport.world_size))


if __name__ == "__main__":
    launch(work, 3)
