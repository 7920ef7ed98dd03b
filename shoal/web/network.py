"""From an actor to the instructions of native/core/policy.h. instructions.py writes them.

A policy of another class than Shoal's own raises: what it computes is not known here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.algos.actor import Actor
from shoal.errors import ConfigError
from shoal.nn.cores.lstm import LSTM
from shoal.nn.cores.mingru import MinGRU
from shoal.nn.encoders import Image, Numbers
from shoal.nn.encoders.grid import GridCNN
from shoal.nn.encoders.impala import ImpalaCNN
from shoal.nn.encoders.nature import NatureCNN
from shoal.nn.layers import ACTIVATIONS
from shoal.nn.looks import Look
from shoal.nn.policy import DeepPolicy, Policy
from shoal.nn.qnet import QHead, QNet
from shoal.web import instructions
from shoal.web.instructions import Design, Network, QDesign

# exact types: a subclass may compute something else
ENCODERS: dict[type[Any], str] = {GridCNN: "grid", NatureCNN: "nature", ImpalaCNN: "impala"}
CORES: dict[type[Any], str] = {type(None): "none", LSTM: "lstm", MinGRU: "mingru"}


def translate(actor: Actor, *, bits: int = 16, agent: int = 0) -> Network:
    """The network of an actor; `agent`: whose, if each of its agents has one."""
    weights = {name: value.detach().cpu().numpy() for name, value in actor.state_dict().items()}
    return instructions.write(describe(actor), weights, bits=bits, agent=agent)


def describe(actor: Actor) -> Design:
    """What the weights of an actor's network do not say."""
    policy, leaves = actor.policy, actor.layout.leaves
    if type(policy) not in (Policy, DeepPolicy, QNet) or len(leaves) != 1:
        raise ConfigError(
            f"the policy is a {type(policy).__name__}, and a page runs Shoal's own networks on observations of "
            "one array. Export it with --onnx or --torchscript."
        )
    inputs = int(np.prod(leaves[0].shape))
    if isinstance(policy, QNet):
        q = QDesign(policy.choices, policy.dueling, policy.distribution, policy.num_atoms, policy.agents)
        return Design(inputs, _look(policy.encoder), policy.activation, policy.choices, q=q)
    core = CORES.get(type(policy.core), type(policy.core).__name__)
    function = policy.body.layers._activation
    activation = next(name for name, known in ACTIVATIONS.items() if known is function)
    return Design(inputs, _look(policy.body.encoder), activation, actor.head.num_params, core)


def _look(encoder: Any) -> Look:
    part = encoder.parts[0]
    if type(part) is Image:
        name = ENCODERS.get(type(part.cnn), type(part.cnn).__name__)
        return Look(name, part.scale, part.shape, part.channels_last)
    return Look("numbers" if type(part) is Numbers else type(part).__name__, getattr(part, "scale", 1.0))


def head_facts(actor: Actor) -> dict[str, Any]:
    """How the page turns logits into actions."""
    head = actor.head
    return instructions.head_facts(head, round(float(head.epsilon), 6) if isinstance(head, QHead) else None)
