"""Waits double up to the longest, and a process that cannot work is given up."""

from feeder.process.backoff import BACKOFF_MAX_S, CRASHES_MAX, WINDOW_S, RestartPolicy


def test_the_backoff_doubles_up_to_its_maximum() -> None:
    policy, now_s, backoffs_s = RestartPolicy(), 0.0, []
    for _ in range(8):
        backoff_s = policy.on_crash(now_s, has_served=False)
        assert backoff_s is not None
        backoffs_s.append(backoff_s)
        now_s += backoff_s + WINDOW_S / CRASHES_MAX  # just too slow to be given up
    assert backoffs_s[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert backoffs_s[6:] == [BACKOFF_MAX_S, BACKOFF_MAX_S]


def test_too_many_crashes_in_a_minute_are_given_up() -> None:
    policy = RestartPolicy()
    for second in range(CRASHES_MAX):
        assert policy.on_crash(float(second), has_served=False) is not None
    assert policy.on_crash(float(CRASHES_MAX), has_served=False) is None


def test_a_node_process_that_has_served_is_never_given_up() -> None:
    policy, now_s = RestartPolicy(), 0.0
    for _ in range(100 * CRASHES_MAX):
        backoff_s = policy.on_crash(now_s, has_served=True)
        assert backoff_s is not None
        assert 0 < backoff_s <= BACKOFF_MAX_S
        now_s += backoff_s
    assert policy.crashes == 100 * CRASHES_MAX


def test_a_minute_without_a_crash_resets_the_backoff() -> None:
    policy = RestartPolicy()
    for second in range(3):
        policy.on_crash(float(second), has_served=True)
    assert policy.on_crash(2 + WINDOW_S, has_served=True) == 0.25
