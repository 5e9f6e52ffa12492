"""Rights and roles."""

from halimede.identities.roles import ROLES, Right, rights_of, roles_with


def test_every_right_has_a_role() -> None:
    for right in Right:
        assert roles_with(right), right


def test_roles_add_up() -> None:
    assert rights_of(()) == frozenset()
    assert rights_of(("infer", "metrics")) == ROLES["infer"] | {Right.METRICS}


def test_only_control_changes_models() -> None:
    assert roles_with(Right.CONTROL) == ["control"]
    assert Right.INFERENCE not in ROLES["control"] | ROLES["read"]
    assert roles_with(Right.HEALTH)[0] == "health"
