"""When the circuit breaker of the cache lets lookups through, by its table of states."""

from halimede.cache.redis import RETRY_NS, CircuitBreaker


def test_closed_breaker_allows_all() -> None:
    breaker = CircuitBreaker()
    assert all(breaker.allows(now) for now in (1, 2, 3))
    assert not breaker.record_success()
    assert not breaker.is_open


def test_open_breaker_allows_one_probe_after_each_pause() -> None:
    breaker = CircuitBreaker()
    assert breaker.record_failure(100)
    assert not breaker.record_failure(110), "one outage begins once"
    assert breaker.is_open
    assert not breaker.allows(109 + RETRY_NS)
    assert breaker.allows(110 + RETRY_NS)
    assert not breaker.allows(111 + RETRY_NS), "the probe is under way"
    assert not breaker.record_failure(200 + RETRY_NS)
    assert not breaker.allows(199 + 2 * RETRY_NS)
    assert breaker.allows(200 + 2 * RETRY_NS)


def test_success_closes_the_breaker() -> None:
    breaker = CircuitBreaker()
    breaker.record_failure(1)
    assert breaker.record_success()
    assert not breaker.is_open
    assert breaker.allows(2)
    assert breaker.allows(2)
    assert breaker.record_failure(3), "another outage begins"
