import torch
import torch.distributed as dist
from common import begin, net
from torch.nn import functional as F

rank, n = begin()
actor, critic = net(), net(seed=1)
torch.manual_seed(rank)
of_actor = torch.optim.Adam(actor.parameters(), lr=0.01)
of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)


def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= n


for _ in range(2):
    seen = torch.randn(16, 6)
    action = torch.distributions.Categorical(logits=actor(seen)).sample()
    reward = (action == 1).float() + 0.1 * torch.randn(16)
    for _ in range(2):
        of_actor.zero_grad()
        told = torch.distributions.Categorical(logits=actor(seen)).log_prob(action)
        (-(told * (reward - reward.mean())).mean()).backward()
        average(actor)
        of_actor.step()
    of_critic.zero_grad()
    F.mse_loss(critic(seen).mean(1), reward).backward()
    average(critic)
    of_critic.step()
