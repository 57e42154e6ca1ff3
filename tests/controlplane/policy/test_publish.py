"""Publishing, rolling back and confirming, in the tables."""

import threading
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import connection, transaction
from django.utils import timezone

from connector.protocol import PolicyAck as AckMessage
from connector.protocol import PolicyValues
from controlplane.accounts.models import AuditEntry
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.fleet.models import Engine, Router
from controlplane.policy import actions, selectors
from controlplane.policy.models import EnforcerKind, PolicyRevision

pytestmark = pytest.mark.django_db


def publish(scope: str = "fleet", **values: object) -> PolicyRevision:
    return actions.publish_policy(scope=scope, values=values, author="user:ann", reason="test")


def make_engine(name: str = "decode-0", **fields: Any) -> Engine:
    heard = {"approved": True, "role": "decode", "model": "tiny", "last_seen_at": timezone.now()}
    return Engine.objects.create(name=name, **{**heard, **fields})


def test_migrated_database_holds_the_defaults_as_revision_one() -> None:
    revision = PolicyRevision.objects.get()
    assert (revision.number, revision.scope) == (1, "fleet")
    assert revision.values == msgspec.to_builtins(PolicyValues())
    assert not actions.ensure_first_revision()


def test_revision_holds_all_that_its_scope_sets() -> None:
    publish("tenant:acme", kv_recompute_threshold=100)
    second = publish("tenant:acme", decoder_kv_blocks_ttl=60)
    assert second.values == {"kv_recompute_threshold": 100, "decoder_kv_blocks_ttl": 60}
    assert second.diff == [{"field": "decoder_kv_blocks_ttl", "before": None, "after": 60}]
    third = publish("tenant:acme", kv_recompute_threshold=None)
    assert third.values == {"decoder_kv_blocks_ttl": 60}
    assert [second.number, third.number] == [3, 4]


def test_publication_is_audited() -> None:
    publish(kv_recompute_threshold=100)
    entry = AuditEntry.objects.get(action="publish", object_id="2")
    assert (entry.actor, entry.before["kv_recompute_threshold"], entry.after["kv_recompute_threshold"]) == (
        "user:ann",
        64,
        100,
    )


@pytest.mark.parametrize(
    ("scope", "values", "field"),
    [
        ("fleet", {"kv_recompute_threshold": -1}, "values.kv_recompute_threshold"),
        ("fleet", {"decoder_kv_blocks_ttl": 5}, "values.decoder_kv_blocks_ttl"),
        ("fleet", {"kv_recompute_threshold": "64"}, "values.kv_recompute_threshold"),
        ("fleet", {"kv_recompute_threshold": True}, "values.kv_recompute_threshold"),
        ("fleet", {"kv_pull_deadline": 0}, "values.kv_pull_deadline"),
        ("fleet", {"pinned_kv_limit": 1.5}, "values.pinned_kv_limit"),
        ("fleet", {"no_such_field": 1}, "values.no_such_field"),
        ("fleet", {}, "values"),
        ("planet", {"trace_sampling": 1.0}, "scope"),
    ],
)
def test_bad_input_names_its_field_and_changes_nothing(scope: str, values: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        actions.publish_policy(scope=scope, values=values, author="user:ann")
    assert [error.field for error in refusal.value.errors] == [field]
    assert PolicyRevision.objects.count() == 1


def test_revision_is_immutable() -> None:
    revision = PolicyRevision.objects.get()
    revision.reason = "rewritten"
    with pytest.raises(TypeError):
        revision.save()


def test_rollback_restores_what_the_scope_set_before() -> None:
    publish("tenant:acme", kv_recompute_threshold=100)
    second = publish("tenant:acme", kv_recompute_threshold=200, trace_sampling=0.5)
    undone = actions.rollback_policy(second.number, author="user:bob")
    assert (undone.values, undone.rolled_back) == ({"kv_recompute_threshold": 100}, second.number)
    assert actions.rollback_policy(undone.number, author="user:bob").values == second.values


def test_rollback_of_a_scopes_first_revision_empties_the_scope() -> None:
    first = publish("tenant:acme", kv_recompute_threshold=100)
    assert actions.rollback_policy(first.number, author="user:bob").values == {}
    assert selectors.current_book().of_kind("tenant") == {}


def test_rollback_under_later_revisions_or_of_the_first_is_refused() -> None:
    first = publish(kv_recompute_threshold=100)
    publish(kv_recompute_threshold=200)
    with pytest.raises(ConflictError):
        actions.rollback_policy(first.number, author="user:bob")
    with pytest.raises(PolicyRevision.DoesNotExist):
        actions.rollback_policy(99, author="user:bob")


def test_fleets_first_revision_cannot_be_rolled_back() -> None:
    with pytest.raises(ConflictError):
        actions.rollback_policy(1, author="user:bob")


def test_every_enforcer_is_expected_with_its_own_values() -> None:
    make_engine("decode-0")
    make_engine("silent", reported_state="silent", last_seen_at=timezone.now() - timedelta(minutes=9))
    make_engine("gone", last_seen_at=timezone.now() - timedelta(minutes=11))
    make_engine("strange", approved=False)
    Router.objects.create(name="router-0", connected=True)
    Router.objects.create(name="router-1", connected=False)
    revision = publish("engine:decode-0", kv_recompute_threshold=7)
    expected = {ack.enforcer: ack.expected["kv_recompute_threshold"] for ack in revision.acks.all()}
    assert expected == {"decode-0": 7, "silent": 64, "router-0": 64}


def answer(revision: PolicyRevision, values: PolicyValues, *unsupported: str, told: PolicyValues | None = None) -> bool:
    message = AckMessage(enforcer="decode-0", revision=revision.number, values=values, unsupported_fields=unsupported)
    return actions.record_ack(message, kind=EnforcerKind.ENGINE, enforcer="decode-0", told=told)


@pytest.mark.parametrize(
    ("changes", "unsupported", "state"),
    [
        ({}, (), "acked"),
        ({}, ("decoder_kv_blocks_ttl",), "acked"),
        ({"decoder_kv_blocks_ttl": 480}, (), "drifted"),
        ({"decoder_kv_blocks_ttl": 480}, ("decoder_kv_blocks_ttl",), "unsupported"),
        ({"decoder_kv_blocks_ttl": 480, "trace_sampling": 0.0}, ("decoder_kv_blocks_ttl",), "drifted"),
    ],
)
def test_state_follows_from_the_values_read_back(
    changes: dict[str, Any], unsupported: tuple[str, ...], state: str
) -> None:
    make_engine()
    revision = publish(decoder_kv_blocks_ttl=60)
    told = selectors.current_book().effective()
    assert answer(revision, msgspec.structs.replace(told, **changes), *unsupported, told=told)
    assert selectors.ack_state(revision.acks.get(), now=timezone.now()) == state


def test_no_ack_for_three_seconds_is_unacknowledged_until_it_comes() -> None:
    make_engine()
    revision = publish(decoder_kv_blocks_ttl=60)
    ack = revision.acks.get()
    assert selectors.ack_state(ack, now=ack.sent_at + timedelta(seconds=2.9)) == "waiting"
    assert selectors.ack_state(ack, now=ack.sent_at + timedelta(seconds=3.1)) == "unacknowledged"
    assert answer(revision, selectors.current_book().effective())
    assert selectors.ack_state(revision.acks.get(), now=ack.sent_at + timedelta(seconds=9)) == "acked"


def test_ack_of_a_revision_that_was_not_told_is_dropped() -> None:
    assert not answer(PolicyRevision.objects.get(), PolicyValues())
    unknown = PolicyRevision(number=99)
    assert not answer(unknown, PolicyValues(), told=PolicyValues())


def test_enforcer_that_came_while_a_revision_was_published_is_counted() -> None:
    revision = publish(decoder_kv_blocks_ttl=60)
    make_engine()
    told = selectors.current_book().effective()
    assert answer(revision, told, told=told)
    assert selectors.ack_state(revision.acks.get(), now=timezone.now()) == "acked"


def test_first_answer_is_the_one_that_is_timed() -> None:
    make_engine()
    revision = publish(decoder_kv_blocks_ttl=60)
    told = selectors.current_book().effective()
    answer(revision, told)
    first = revision.acks.get().acked_at
    answer(revision, PolicyValues(), told=told)
    again = revision.acks.get()
    assert again.acked_at == first
    assert selectors.ack_state(again, now=timezone.now()) == "drifted"


def test_told_again_an_enforcer_has_to_confirm_again() -> None:
    make_engine()
    revision = publish(decoder_kv_blocks_ttl=60)
    values = selectors.current_book().effective()
    answer(revision, values)
    actions.expect_ack(kind=EnforcerKind.ENGINE, enforcer="decode-0", revision=revision.number, values=values)
    assert revision.acks.get().acked_at is None


@pytest.mark.django_db(transaction=True)
def test_concurrent_publications_are_numbered_without_gaps_and_all_count() -> None:
    fields = ["kv_recompute_threshold", "decoder_kv_blocks_ttl", "kv_lease_duration", "decode_local_max_new_tokens"]

    def work(field: str) -> None:
        publish(**{field: 77})
        connection.close()

    threads = [threading.Thread(target=work, args=(field,)) for field in fields]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(PolicyRevision.objects.order_by("number").values_list("number", flat=True)) == [1, 2, 3, 4, 5]
    newest = PolicyRevision.objects.get(number=5)
    assert {field: newest.values[field] for field in fields} == dict.fromkeys(fields, 77)


@pytest.mark.django_db(transaction=True)
def test_rolled_back_transaction_leaves_no_trace_in_the_book() -> None:
    @transaction.atomic
    def fail() -> None:
        publish(kv_recompute_threshold=1)
        selectors.current_book()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    publish(kv_recompute_threshold=2)
    assert selectors.current_book().effective().kv_recompute_threshold == 2
