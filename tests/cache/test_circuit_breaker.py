from halimede.cache.outage import PAUSE_NS, Outage


def test_all_may_ask_while_there_is_no_outage() -> None:
    outage = Outage()
    assert all(outage.may_ask(now) for now in (1, 2, 3))
    assert not outage.answered()
    assert not outage.lasts


def test_one_at_a_time_may_ask_during_an_outage_and_not_before_its_pause_is_over() -> None:
    outage = Outage()
    assert outage.failed(100)
    assert not outage.failed(110), "an outage begins once"
    assert outage.lasts
    assert not outage.may_ask(109 + PAUSE_NS)
    assert outage.may_ask(110 + PAUSE_NS)
    assert not outage.may_ask(111 + PAUSE_NS), "another one asks"
    assert not outage.failed(200 + PAUSE_NS)
    assert not outage.may_ask(199 + 2 * PAUSE_NS)
    assert outage.may_ask(200 + 2 * PAUSE_NS)


def test_an_answer_ends_it() -> None:
    outage = Outage()
    outage.failed(1)
    assert outage.answered()
    assert not outage.lasts
    assert outage.may_ask(2)
    assert outage.may_ask(2)
    assert outage.failed(3), "and another begins"
