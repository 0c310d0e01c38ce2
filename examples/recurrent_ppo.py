"""Train a recurrent policy by PPO in JAX, on a task that needs memory.

    python examples/recurrent_ppo.py                   # on a GPU twice: dnnffi's choice, lax.scan
    python examples/recurrent_ppo.py --feed-forward    # a policy without memory stays at chance

The first observation of an episode shows one of four cues. Blank observations follow, for a random
number of steps, and then a query, at which the action must be the cue. The next episode of the row
begins at the next step, so a row of a rollout holds several episodes:

    t               0       1       2       3       4       5
    observation    cue    blank   query    cue    blank   blank
    resets[t]      true   false   false    true   false   false    step t begins an episode
    dones[t]       false  false   true     false  false   false    step t ends an episode

Where `resets[t]` is true, the network replaces the state *before* step t by zeros. Where `dones[t]`
is true, step t + 1 belongs to another episode, and GAE adds nothing from it. Most environments
return `dones`. `resets[t + 1]` equals `dones[t]`, also from one rollout to the next. A network that
is given `dones` as resets raises no error: it forgets the cue right before the query, and begins
the next episode in the state after the query.

A rollout begins in the state in which the rollout before it ended. The update starts from that
state too, with new weights. A minibatch has all steps of some rows, never some steps of a row.

Symbols: T steps of a rollout, B rows (an environment each), I input size, H hidden size, A actions.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any, NamedTuple

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise SystemExit(f"This example needs JAX ({error}): pip install '.[jax]'") from None

from command_line import count  # examples/command_line.py

import dnnffi
from dnnffi import jax as djax

NUM_CUES = 4  # and actions
MIN_DELAY, MAX_DELAY = 2, 10  # blank observations of an episode
DISCOUNT, GAE_DECAY = 0.95, 0.95
CLIP_RATIO, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.2, 0.5, 0.01
NUM_EPOCHS, NUM_MINIBATCHES = 4, 4
LEARNING_RATE, DECAYS, TINY, MAX_GRADIENT_NORM = 3e-3, (0.9, 0.999), 1e-8, 0.5
UPDATES_PER_LINE = 10
SIZES = {"updates": 100, "rows": 1024, "steps": 128, "hidden": 256}
SIZES_ON_A_CPU = {"updates": 100, "rows": 64, "steps": 32, "hidden": 32}


class Config(NamedTuple):
    """Settings of the compiled functions."""

    num_steps: int  # T
    implementation: str | None = None  # of dnnffi.jax; None for its own choice
    is_feed_forward: bool = False  # the state is reset before every step


class Episodes(NamedTuple):
    """The current episode of each row, as integers [B]."""

    cue: Any
    delay: Any  # blank observations
    elapsed: Any  # steps since the first one


def begin_episodes(key, num_rows):
    """Return episodes at their first steps."""
    cue_key, delay_key = jax.random.split(key)
    cue = jax.random.randint(cue_key, (num_rows,), 0, NUM_CUES)
    delay = jax.random.randint(delay_key, (num_rows,), MIN_DELAY, MAX_DELAY + 1)
    return Episodes(cue, delay, jnp.zeros_like(cue))


def observe(episodes):
    """Return observations [B, I]: the cue at the first step, one-hot, and a flag at the query."""
    is_first, is_query = episodes.elapsed == 0, episodes.elapsed > episodes.delay
    cue = jax.nn.one_hot(episodes.cue, NUM_CUES) * is_first[:, None]
    return jnp.concatenate([cue, is_query[:, None].astype(cue.dtype)], axis=1)


def step_episodes(key, episodes, actions):
    """Return the episodes after a step, rewards [B] and dones [B]; replace those that ended."""
    dones = episodes.elapsed > episodes.delay
    rewards = (dones & (actions == episodes.cue)).astype("float32")
    running = episodes._replace(elapsed=episodes.elapsed + 1)
    first = begin_episodes(key, dones.size)
    return jax.tree.map(partial(jnp.where, dones), first, running), rewards, dones


def first_parameters(key, hidden_size):
    """Return the weights of the GRU, and those that make logits and a value of its output."""
    spec = dnnffi.RNNSpec(mode="gru", input_size=NUM_CUES + 1, hidden_size=hidden_size)
    w_out, b_out = jnp.zeros((NUM_CUES + 1, hidden_size)), jnp.zeros(NUM_CUES + 1)
    return {"rnn": djax.init(key, spec), "w_out": w_out, "b_out": b_out}


def heads(parameters, y):
    """Return logits [..., A] and values [...] of the outputs y [..., H] of the GRU."""
    out = y @ parameters["w_out"].T + parameters["b_out"]
    return out[..., :-1], out[..., -1]


def act(parameters, state, observations, resets, config):
    """Return logits [B, A], values [B] and the state [1, B, H] after one step."""
    state = jnp.where(resets[:, None], 0, state)
    y, state = djax.gru_step(
        observations, state, parameters["rnn"], implementation=config.implementation
    )
    return *heads(parameters, y), state


def evaluate(parameters, state, observations, resets, config):
    """Return logits [T, B, A] and values [T, B]: T times `act`, in one call."""
    rnn, implementation = parameters["rnn"], config.implementation
    y, _ = djax.gru(observations, state, rnn, resets=resets, implementation=implementation)
    return heads(parameters, y)


def log_probs_of(logits, actions):
    """Return the logarithms of the probabilities of the actions."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], -1)[..., 0]


class Rollout(NamedTuple):
    """The steps of all rows, with the results of the policy that acted. All arrays are [T, B]."""

    observations: Any  # [T, B, I]
    resets: Any
    actions: Any
    log_probs: Any
    values: Any
    rewards: Any
    dones: Any


class Batch(NamedTuple):
    """The arrays of an update. Rows are the second dimension of each."""

    state: Any  # [1, B, H], before the first step and its reset
    rollout: Rollout
    advantages: Any  # [T, B]


@partial(jax.jit, static_argnames="config")
def collect(key, parameters, episodes, state, config):
    """Act for T steps; return the episodes and the state after them, and the batch."""

    def decide(episodes, state):
        observations = observe(episodes)
        resets = (episodes.elapsed == 0) | config.is_feed_forward
        return observations, resets, *act(parameters, state, observations, resets, config)

    def step(carry, key):
        episodes, state = carry
        action_key, episode_key = jax.random.split(key)
        observations, resets, logits, values, state = decide(episodes, state)
        actions = jax.random.categorical(action_key, logits)
        episodes, rewards, dones = step_episodes(episode_key, episodes, actions)
        log_probs = log_probs_of(logits, actions)
        kept = Rollout(observations, resets, actions, log_probs, values, rewards, dones)
        return (episodes, state), kept

    keys = jax.random.split(key, config.num_steps)
    (episodes, last_state), rollout = jax.lax.scan(step, (episodes, state), keys)
    # The next rollout computes this step again; only its values are needed here.
    _, _, _, next_values, _ = decide(episodes, last_state)
    advantages = gae(rollout.rewards, rollout.values, rollout.dones, next_values)
    return episodes, last_state, Batch(state, rollout, advantages)


def gae(rewards, values, dones, next_values):
    """Return advantages [T, B] by generalized advantage estimation (Schulman et al., 2016).

    ``next_values`` [B] belong to the step after the last one.
    """
    discounts = DISCOUNT * (1 - dones)  # 0 from the last step of an episode to the next episode
    errors = rewards + discounts * jnp.concatenate([values[1:], next_values[None]]) - values

    def step(later_advantage, of_step):
        error, discount = of_step
        advantage = error + GAE_DECAY * discount * later_advantage
        return advantage, advantage

    zeros = jnp.zeros_like(next_values)
    return jax.lax.scan(step, zeros, (errors, discounts), reverse=True)[1]


def surrogate(log_probs, old_log_probs, advantages):
    """Return the clipped objective of PPO (Schulman et al., 2017), which is maximized."""
    ratio = jnp.exp(log_probs - old_log_probs)
    clipped = jnp.clip(ratio, 1 - CLIP_RATIO, 1 + CLIP_RATIO)
    return jnp.minimum(ratio * advantages, clipped * advantages)


def ppo_loss(parameters, batch, config):
    """Return the loss of a minibatch: surrogate, value loss and entropy bonus."""
    state, rollout, advantages = batch
    logits, values = evaluate(parameters, state, rollout.observations, rollout.resets, config)
    log_probs = log_probs_of(logits, rollout.actions)
    normalized = (advantages - advantages.mean()) / (advantages.std() + TINY)
    objective = surrogate(log_probs, rollout.log_probs, normalized).mean()
    value_loss = ((values - (advantages + rollout.values)) ** 2).mean() / 2
    entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
    return VALUE_WEIGHT * value_loss - objective - ENTROPY_WEIGHT * entropy


def adam(parameters, gradients, moments):
    """Return parameters and moments after one step of Adam, with the norm of gradients limited.

    ``moments`` are the number of steps, and the means of the gradients and of their squares.
    """
    first, second = DECAYS
    num_steps, mean, square = moments[0] + 1, *moments[1:]
    norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(gradients)))
    scale = jnp.minimum(1, MAX_GRADIENT_NORM / (norm + TINY))
    gradients = jax.tree.map(lambda g: g * scale, gradients)
    mean = jax.tree.map(lambda m, g: first * m + (1 - first) * g, mean, gradients)
    square = jax.tree.map(lambda v, g: second * v + (1 - second) * g * g, square, gradients)

    def new(p, m, v):
        root = jnp.sqrt(v / (1 - second**num_steps))
        return p - LEARNING_RATE * m / (1 - first**num_steps) / (root + TINY)

    return jax.tree.map(new, parameters, mean, square), (num_steps, mean, square)


@partial(jax.jit, static_argnames="config")
def train_minibatch(parameters, moments, batch, rows, config):
    """Return parameters and moments after one step of Adam on some rows of a batch."""
    minibatch = jax.tree.map(lambda array: array[:, rows], batch)
    return adam(parameters, jax.grad(ppo_loss)(parameters, minibatch, config), moments)


def minibatches(key, num_rows):
    """Yield the rows of each minibatch: in every epoch all rows, in random order."""
    for epoch_key in jax.random.split(key, NUM_EPOCHS):
        yield from jax.random.permutation(epoch_key, num_rows).reshape(NUM_MINIBATCHES, -1)


def train(config, num_updates, num_rows, hidden_size, seed=0):
    """Return the success rate of each rollout, and steps per second after the first update."""
    key, episode_key, parameter_key = jax.random.split(jax.random.key(seed), 3)
    parameters = first_parameters(parameter_key, hidden_size)
    moments = jnp.zeros(()), *[jax.tree.map(jnp.zeros_like, parameters)] * 2
    episodes = begin_episodes(episode_key, num_rows)
    state = jnp.zeros(parameters["rnn"].spec.h_shape(num_rows))
    rates = []
    for update in range(1, num_updates + 1):
        key, rollout_key, row_key = jax.random.split(key, 3)
        episodes, state, batch = collect(rollout_key, parameters, episodes, state, config)
        for rows in minibatches(row_key, num_rows):
            parameters, moments = train_minibatch(parameters, moments, batch, rows, config)
        rates.append(batch.rollout.rewards.sum() / batch.rollout.dones.sum())
        if update == 1:
            jax.block_until_ready(parameters)
            started = time.perf_counter()
        if update % UPDATES_PER_LINE == 0:
            recent = sum(map(float, rates[-UPDATES_PER_LINE:])) / UPDATES_PER_LINE
            print(f"update {update:4d}  success rate {recent:.2f}", flush=True)
    jax.block_until_ready(parameters)
    num_timed = (num_updates - 1) * config.num_steps * num_rows
    return [float(rate) for rate in rates], num_timed / (time.perf_counter() - started)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=count, help="number of rollouts and updates")
    parser.add_argument("--rows", type=count, help="number of environments")
    parser.add_argument("--steps", type=count, help="number of steps of a rollout")
    parser.add_argument("--hidden", type=count, help="hidden size of the GRU")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers")
    parser.add_argument(
        "--implementation",
        choices=("auto", "scan", "both"),
        help="what runs the GRU: auto is dnnffi's choice; default: auto on a CPU, both on a GPU",
    )
    parser.add_argument("--feed-forward", action="store_true", help="reset before every step")
    platform = jax.devices()[0].platform
    sizes = SIZES_ON_A_CPU if platform == "cpu" else SIZES
    parser.set_defaults(**sizes, implementation="auto" if platform == "cpu" else "both")
    options = parser.parse_args(arguments)
    if options.rows % NUM_MINIBATCHES:
        parser.error(f"--rows must be a multiple of {NUM_MINIBATCHES}; got {options.rows}")
    if options.steps < MAX_DELAY + 2:  # the longest episode: one ends in each row
        parser.error(f"--steps must be at least {MAX_DELAY + 2}; got {options.steps}")
    chosen = ", ".join(f"--{name} {getattr(options, name)}" for name in sizes)
    print(f"{platform}; sizes: {chosen}; success rate by chance: {1 / NUM_CUES:.2f}")
    names = ("auto", "scan") if options.implementation == "both" else (options.implementation,)
    for name in names:
        print(f"--implementation {name}")
        config = Config(options.steps, None if name == "auto" else name, options.feed_forward)
        _, rate = train(config, options.updates, options.rows, options.hidden, options.seed)
        print(f"{rate:,.0f} steps/s")


if __name__ == "__main__":
    main()
