"""Who a request is from, whether it may, and how much. The test moves both clocks."""

import logging
from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from halimede.errors import Forbidden, TooMany, Unauthenticated
from halimede.identities.guard import (
    AMBIGUOUS,
    MAX_KNOWN_CHARACTERS,
    MAX_KNOWN_HEADERS,
    NO_KEY,
    WRONG_KEY,
    Guard,
    everyone,
)
from halimede.identities.keys import PREFIX, new_key
from halimede.identities.roles import Right
from halimede.identities.values import Identity

KEY, STORED = new_key()
OTHER_KEY, OTHER = new_key()


class Rig:
    """A guard of these identities, and its clocks."""

    def __init__(self, *identities: Identity) -> None:
        self.seconds = 100.0
        self.epoch = 1_000_000.0
        self.guard = Guard(self.named(*identities), lambda: self.seconds, lambda: self.epoch)

    def named(self, *identities: Identity) -> dict[str, Identity]:
        return {identity.name: identity for identity in identities}

    def replace(self, *identities: Identity) -> None:
        self.guard.replace(self.named(*identities))


def test_key_shows_its_identity() -> None:
    rig = Rig(Identity("alice", ("infer",), (STORED, OTHER)), Identity("bob", ()))
    for key, stored in ((KEY, STORED), (OTHER_KEY, OTHER)):
        caller = rig.guard.admit(f"Bearer {key}")
        assert (caller.name, str(caller)) == ("alice", f"'alice' (key {stored.id})")
    assert rig.guard.admit(f"Bearer {KEY}") is rig.guard.admit("Basic " + b64encode(f"x:{KEY}".encode()).decode())


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer x", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Bearer {PREFIX}{STORED.id}_", "Bearer é"],
    ids=range(6),
)
def test_wrong_keys_look_alike(header: str) -> None:
    rig = Rig(Identity("alice", ("infer",), (STORED,)), Identity("anonymous", ("health",)))
    with pytest.raises(Unauthenticated) as caught:
        rig.guard.admit(header)
    assert str(caught.value) == WRONG_KEY


def test_header_is_remembered_only_while_its_key_is_valid() -> None:
    rig = Rig(Identity("alice", ("infer",), (STORED,)))
    for header in (f"Bearer {KEY}", f"Bearer {KEY}".encode()):
        for _ in range(3):
            assert rig.guard.admit(header).name == "alice"
            with pytest.raises(Unauthenticated):
                rig.guard.admit(header[:-1])
    rig.replace(Identity("bob", ("infer",), (STORED,)))
    assert rig.guard.admit(f"Bearer {KEY}").name == "bob"
    rig.replace()
    for header in (f"Bearer {KEY}", f"Bearer {KEY}".encode()):
        with pytest.raises(Unauthenticated):
            rig.guard.admit(header)


def test_many_forms_of_a_header_take_little_memory() -> None:
    """Whoever has a key can write its header in any number of ways."""
    rig = Rig(Identity("alice", ("infer",), (STORED,)))
    for spaces in range(3 * MAX_KNOWN_HEADERS):
        assert rig.guard.admit("Bearer " + " " * (spaces % 200) + KEY + " " * (spaces // 200)).name == "alice"
    assert len(rig.guard._known) <= MAX_KNOWN_HEADERS
    assert max(map(len, rig.guard._known)) <= MAX_KNOWN_CHARACTERS


def test_request_without_a_key_is_anonymous_if_the_file_says_so() -> None:
    rig = Rig(Identity("alice", ("infer",), (STORED,)))
    with pytest.raises(Unauthenticated, match=NO_KEY):
        rig.guard.admit(None)
    rig.replace(Identity("anonymous", ("health",)))
    caller = rig.guard.admit(None)
    assert caller.refusal((Right.HEALTH,)) is None
    # It would be allowed with a key, so it is asked for one.
    assert isinstance(caller.refusal((Right.INFERENCE,)), Unauthenticated)


def test_role_decides() -> None:
    caller = Rig(Identity("alice", ("infer",), (STORED,))).guard.admit(f"Bearer {KEY}")
    assert caller.refusal((Right.INFERENCE,)) is None
    assert caller.refusal((Right.CONTROL, Right.METADATA)) is None
    error = caller.refusal((Right.CONTROL,))
    assert isinstance(error, Forbidden)
    assert str(error) == "'alice' may not load or unload models, or change settings; the role 'control' allows it"


def test_certificate_shows_its_identity() -> None:
    rig = Rig(
        Identity("alice", ("infer",), (STORED,), ("CN=alice", "DNS:a")), Identity("bob", (), (), ("URI:spiffe://bob",))
    )
    assert rig.guard.wants_certificates
    assert str(rig.guard.admit(None, ["CN=x", "CN=alice", "DNS:a"])) == "'alice' (certificate CN=alice)"
    assert rig.guard.admit(None, ["URI:spiffe://bob"]).name == "bob"
    # The key is chosen for this request, the certificate for the connection.
    assert rig.guard.admit(f"Bearer {KEY}", ["URI:spiffe://bob"]).name == "alice"
    with pytest.raises(Unauthenticated, match=NO_KEY):
        rig.guard.admit(None, ["CN=x"])
    with pytest.raises(Unauthenticated, match=AMBIGUOUS):
        rig.guard.admit(None, ["CN=alice", "URI:spiffe://bob"])


def test_rate_is_a_bucket() -> None:
    rig = Rig(Identity("alice", ("infer",), (STORED, OTHER), rate=2, burst=3))
    for key in (KEY, OTHER_KEY, KEY):
        rig.guard.admit(f"Bearer {key}")
    with pytest.raises(TooMany, match="'alice' may send 2 requests per second") as caught:
        rig.guard.admit(f"Bearer {KEY}")
    assert caught.value.retry_secs == pytest.approx(0.5)
    rig.seconds += 0.5
    rig.guard.admit(f"Bearer {OTHER_KEY}")
    with pytest.raises(TooMany):
        rig.guard.admit(f"Bearer {KEY}")


def test_rate_below_one_lets_one_through() -> None:
    rig = Rig(Identity("alice", ("infer",), (STORED,), rate=0.1))
    rig.guard.admit(f"Bearer {KEY}")
    rig.seconds += 9
    with pytest.raises(TooMany):
        rig.guard.admit(f"Bearer {KEY}")
    rig.seconds += 1.001
    rig.guard.admit(f"Bearer {KEY}")


def test_wrong_key_spends_nothing() -> None:
    rig = Rig(Identity("alice", ("infer",), (STORED,), rate=1))
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            rig.guard.admit(f"Bearer {KEY}x")
    rig.guard.admit(f"Bearer {KEY}")


def test_inferences_in_flight_are_limited() -> None:
    account = Rig(Identity("alice", ("infer",), (STORED,), concurrent=2)).guard.admit(f"Bearer {KEY}").account
    assert account.begin() is None
    assert account.begin() is None
    assert str(account.begin()) == "'alice' may have 2 inferences in flight"
    account.end()
    assert account.begin() is None


def test_key_expires() -> None:
    rig = Rig(Identity("alice", ("infer",), (STORED,), expires=datetime.fromtimestamp(1_000_010, UTC)))
    rig.guard.admit(f"Bearer {KEY}")
    rig.epoch += 10
    with pytest.raises(Unauthenticated, match=WRONG_KEY):
        rig.guard.admit(f"Bearer {KEY}")


def test_change_of_the_file_leaves_other_callers_alone() -> None:
    bob = Identity("bob", ("read",), (OTHER,))
    rig = Rig(Identity("alice", ("infer",), (STORED,), rate=1), bob)
    alice, other = rig.guard.admit(f"Bearer {KEY}"), rig.guard.admit(f"Bearer {OTHER_KEY}")
    rig.replace(Identity("alice", ("read",), (STORED,), rate=1), bob)
    assert rig.guard.admit(f"Bearer {OTHER_KEY}") is other
    # What was spent stays spent.
    with pytest.raises(TooMany):
        rig.guard.admit(f"Bearer {KEY}")
    assert (alice.revoked, other.revoked) == (True, False)
    assert alice.now().refusal((Right.STATE,)) is None


def test_key_that_was_removed_counts_no_more() -> None:
    rig = Rig(Identity("alice", ("infer",), (STORED, OTHER)))
    first, second = rig.guard.admit(f"Bearer {KEY}"), rig.guard.admit(f"Bearer {OTHER_KEY}")
    rig.replace(Identity("alice", ("infer",), (OTHER,)))
    with pytest.raises(Unauthenticated):
        rig.guard.admit(f"Bearer {KEY}")
    with pytest.raises(Unauthenticated):
        first.now()
    assert second.now() is rig.guard.admit(f"Bearer {OTHER_KEY}")
    rig.replace()
    for caller in (first, second):
        with pytest.raises(Unauthenticated):
            caller.now()


def test_inferences_in_flight_count_after_their_identity_has_gone_and_come_back() -> None:
    alice = Identity("alice", ("infer",), (STORED,), concurrent=1)
    rig = Rig(alice)
    account = rig.guard.admit(f"Bearer {KEY}").account
    account.begin()
    rig.replace()
    rig.replace(alice)
    again = rig.guard.admit(f"Bearer {KEY}").account
    assert isinstance(again.begin(), TooMany)
    account.end()
    assert again.begin() is None


def test_refusals_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level(logging.WARNING, "halimede"):
        for _ in range(3):
            rig.guard.note_refusal(Unauthenticated(WRONG_KEY), "127.0.0.1:5")
        rig.seconds += 1
        rig.guard.note_refusal(Unauthenticated(NO_KEY), "")
    assert [record.getMessage() for record in caplog.records] == [
        f"a request from 127.0.0.1:5 was refused: {WRONG_KEY}",
        f"a request from a Unix socket was refused: {NO_KEY} (2 more since the last such line)",
    ]


def test_everyone_may_do_everything() -> None:
    assert all(everyone().refusal((right,)) is None for right in Right)


def test_many_identities_are_replaced_in_steps() -> None:
    people = [(f"u{number}", new_key()) for number in range(50)]
    old, new = people[:40], people[20:]
    rig = Rig(*(Identity(name, ("infer",), (stored,)) for name, (_, stored) in old))
    callers = {name: rig.guard.admit(f"Bearer {key}") for name, (key, _) in old}
    changed = {
        name: Identity(name, ("read",) if number < 5 else ("infer",), (stored,))
        for number, (name, (_, stored)) in enumerate(new)
    }
    seen = set()
    for _ in rig.guard.replacing(changed):
        counted = set()
        for _, (key, _) in people:
            with suppress(Unauthenticated):
                counted.add(rig.guard.admit(f"Bearer {key}").name)
        seen.add(frozenset(counted))
    # In each step a key counts as the old file says or as the new one does, never as a mixture.
    assert seen == {frozenset(name for name, _ in old), frozenset(name for name, _ in new)}
    assert {name for name, caller in callers.items() if caller.revoked} == {f"u{number}" for number in range(25)}
    assert callers["u22"].now().rights != callers["u22"].rights
    with pytest.raises(Unauthenticated):
        callers["u1"].now()
