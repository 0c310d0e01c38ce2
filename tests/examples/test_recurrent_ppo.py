"""The example of a recurrent policy in JAX: its episodes, its resets, GAE, and that it learns."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("jax")
os.environ["JAX_PLATFORMS"] = "cpu"  # JAX reads it at the first use of a device

import jax
import jax.numpy as jnp
import recurrent_ppo as ppo

# The tests have the same sizes, so that they share compiled functions.
ROWS, HIDDEN = 64, 32
CONFIG = ppo.Config(num_steps=32)


@pytest.fixture(scope="module")
def parameters():
    """First parameters, with an output layer that is not zeros."""
    drawn = ppo.first_parameters(jax.random.key(0), HIDDEN)
    return drawn | {"w_out": jax.random.normal(jax.random.key(1), drawn["w_out"].shape)}


@pytest.fixture(scope="module")
def batches(parameters):
    """Two rollouts, of which the second continues the first."""
    episodes = ppo.begin_episodes(jax.random.key(2), ROWS)
    state, found = jnp.zeros((1, ROWS, HIDDEN)), []
    for key in jax.random.split(jax.random.key(3)):
        episodes, state, batch = ppo.collect(key, parameters, episodes, state, CONFIG)
        found.append(batch)
    return found


def joined(batches):
    """Return the rollout of twice as many steps."""
    return jax.tree.map(lambda *parts: np.concatenate(parts), *(one.rollout for one in batches))


def test_an_episode_is_a_cue_blanks_and_a_query():
    cues, delays = jnp.array([2, 0]), jnp.array([2, 3])
    episodes = ppo.Episodes(cues, delays, jnp.zeros(2, int))
    seen = []
    for key in jax.random.split(jax.random.key(0), 4):
        seen.append(np.asarray(ppo.observe(episodes))[0].tolist())
        episodes, _, _ = ppo.step_episodes(key, episodes, cues)
    blank = [0, 0, 0, 0, 0]
    assert seen == [[0, 0, 1, 0, 0], blank, blank, [0, 0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("elapsed", "action", "reward"),
    [
        pytest.param(3, 2, 1, id="the cue"),
        pytest.param(3, 1, 0, id="another action"),
        pytest.param(2, 2, 0, id="before the query"),
    ],
)
def test_only_the_cue_at_the_query_has_a_reward(elapsed, action, reward):
    episodes = ppo.Episodes(*(jnp.array([value]) for value in (2, 2, elapsed)))
    _, rewards, _ = ppo.step_episodes(jax.random.key(0), episodes, jnp.array([action]))
    assert rewards.tolist() == [reward]


def test_rows_hold_several_episodes(batches):
    assert (batches[0].rollout.dones[:-1].sum(axis=0) >= 2).all()


def test_episodes_end_at_different_steps(batches):
    first_ends = np.asarray(batches[0].rollout.dones).argmax(axis=0)
    assert set(first_ends) == set(range(ppo.MIN_DELAY + 1, ppo.MAX_DELAY + 2))


def test_the_step_after_the_end_of_an_episode_is_a_reset(batches):
    rollout = joined(batches)
    np.testing.assert_array_equal(rollout.resets[1:], rollout.dones[:-1])


def test_a_rollout_begins_in_the_middle_of_episodes(batches):
    assert 0 < batches[1].rollout.resets[0].sum() < ROWS


def evaluated(parameters, batch, resets):
    """Return log-probabilities and values of a rollout, by the call for sequences."""
    rollout = batch.rollout
    logits, values = ppo.evaluate(parameters, batch.state, rollout.observations, resets, CONFIG)
    return ppo.log_probs_of(logits, rollout.actions), values


@pytest.mark.parametrize("number", [0, 1])
def test_the_sequence_call_agrees_with_the_steps_that_acted(number, parameters, batches):
    batch = batches[number]
    log_probs, values = evaluated(parameters, batch, batch.rollout.resets)
    np.testing.assert_allclose(log_probs, batch.rollout.log_probs, atol=1e-5)
    np.testing.assert_allclose(values, batch.rollout.values, atol=1e-5)


def test_the_sequence_call_on_dones_disagrees_with_them(parameters, batches):
    batch = batches[1]
    log_probs, _ = evaluated(parameters, batch, batch.rollout.dones)
    assert np.abs(log_probs - batch.rollout.log_probs).max() > 0.1


def test_a_rollout_continues_the_rollout_before_it(parameters, batches):
    whole = ppo.Batch(batches[0].state, joined(batches), None)
    log_probs, _ = evaluated(parameters, whole, whole.rollout.resets)
    np.testing.assert_allclose(log_probs, whole.rollout.log_probs, atol=1e-5)


def gae_by_loop(rewards, values, dones, next_values):
    """Return the advantages of one row: sums of decayed errors up to the end of the episode."""
    values, advantages = [*values, next_values], []
    for begin in range(len(rewards)):
        advantage, factor = 0.0, 1.0
        for step in range(begin, len(rewards)):
            later = 0.0 if dones[step] else values[step + 1]
            advantage += factor * (rewards[step] + ppo.DISCOUNT * later - values[step])
            factor *= ppo.DISCOUNT * ppo.GAE_DECAY
            if dones[step]:
                break
        advantages.append(advantage)
    return advantages


def test_gae_agrees_with_a_loop():
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 12, 5)).astype("float32")
    dones, next_values = rng.random((12, 5)) < 0.3, rng.normal(size=5).astype("float32")
    rows = zip(rewards.T, values.T, dones.T, next_values, strict=True)
    expected = np.transpose([gae_by_loop(*row) for row in rows])
    np.testing.assert_allclose(ppo.gae(rewards, values, dones, next_values), expected, atol=1e-5)


def test_the_advantages_of_a_rollout_end_with_the_value_of_the_next_step(batches):
    first, second = batches
    arrays = first.rollout.rewards, first.rollout.values, first.rollout.dones
    expected = ppo.gae(*arrays, second.rollout.values[0])
    np.testing.assert_allclose(first.advantages, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "has_gradient"),
    [(1.3, 1, False), (1.3, -1, True), (0.7, 1, True), (0.7, -1, False), (1.1, 1, True)],
)
def test_the_surrogate_stops_where_the_policy_has_changed_enough(ratio, advantage, has_gradient):
    gradient = jax.grad(ppo.surrogate)(jnp.log(ratio), 0.0, float(advantage))
    assert bool(gradient) is has_gradient


def test_an_epoch_has_each_row_once():
    rows = np.concatenate(list(ppo.minibatches(jax.random.key(0), ROWS)))
    epochs = np.sort(rows.reshape(ppo.NUM_EPOCHS, ROWS))
    np.testing.assert_array_equal(epochs, [range(ROWS)] * ppo.NUM_EPOCHS)


def test_a_minibatch_does_not_depend_on_other_rows(parameters, batches):
    moments = jnp.zeros(()), *[jax.tree.map(jnp.zeros_like, parameters)] * 2
    rows = jnp.arange(ROWS // ppo.NUM_MINIBATCHES)
    is_read = (jnp.arange(ROWS) < rows.size)[:, None]

    def without_others(array):
        keep = is_read if array.ndim == 3 else is_read[:, 0]
        return jnp.where(keep, array, jnp.zeros_like(array))

    batch = batches[1]
    one, two = (
        ppo.train_minibatch(parameters, moments, each, rows, CONFIG)[0]["w_out"]
        for each in (batch, jax.tree.map(without_others, batch))
    )
    np.testing.assert_array_equal(one, two)


def last_rate(config):
    """Return the mean success rate of the last ten rollouts of a short training."""
    rates, _ = ppo.train(config, 40, ROWS, HIDDEN)
    return np.mean(rates[-10:])


def test_a_recurrent_policy_learns():
    assert last_rate(CONFIG) > 0.9


def test_a_policy_without_memory_stays_at_chance():
    chance = 1 / ppo.NUM_CUES
    assert last_rate(CONFIG._replace(is_feed_forward=True)) == pytest.approx(chance, abs=0.05)


def test_it_prints_the_success_rate_and_steps_per_second(capsys):
    ppo.main(["--updates=10", f"--rows={ROWS}", "--steps=32", f"--hidden={HIDDEN}"])
    words = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in words[1:]] == ["auto", words[2].split()[-1], "steps/s"]
    assert words[2].startswith("update   10  success rate 0.")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--rows=6", "--rows must be a multiple of 4; got 6"),
        ("--steps=11", "--steps must be at least 12; got 11"),
    ],
)
def test_a_size_that_does_not_fit_is_refused(argument, message, capsys):
    with pytest.raises(SystemExit):
        ppo.main([argument])
    assert message in capsys.readouterr().err
