"""Commands from REST's thread to an engine's agent and back."""

import asyncio

import pytest

from connector.protocol import Command, CommandDone, ExtendLease, ReleaseLease, Welcome
from controlplane.accounts.models import AuditEntry
from controlplane.errors import ConflictError
from controlplane.fleet.commands import new_command_id, send_command
from controlplane.fleet.models import Engine, Operation
from tests.controlplane.database import ask, eventually
from tests.controlplane.peers import agent_hello, agent_socket

pytestmark = pytest.mark.django_db(transaction=True)


async def test_command_returns_what_happened_at_the_engine(server_url: str, agent_secret: str) -> None:
    body = ReleaseLease(command_id=new_command_id(), key="lease-1")
    async with agent_socket(server_url, agent_secret) as peer:
        await peer.say(agent_hello())
        await peer.next_of(Welcome)
        sending = asyncio.create_task(ask(lambda: send_command("decode-0", body, 5.0, actor="test")))
        command = await peer.next_of(Command)
        assert (command.body, command.deadline_seconds) == (body, 5.0)
        await peer.say(CommandDone(command_id=body.command_id, outcome="released", detail="10 blocks"))
        operation = await sending
        assert (operation.state, operation.outcome, operation.detail) == ("done", "released", "10 blocks")
        again = await ask(lambda: send_command("decode-0", body, 5.0, actor="test"))
        assert again.pk == operation.pk
    assert await ask(lambda: AuditEntry.objects.filter(action="release", actor="test").count()) == 1


async def test_unanswered_command_stays_open_and_a_late_answer_settles_it(server_url: str, agent_secret: str) -> None:
    body = ExtendLease(command_id=new_command_id(), lease_id="lease-1", ttl_seconds=60, pinned=True)
    async with agent_socket(server_url, agent_secret) as peer:
        await peer.say(agent_hello())
        await peer.next_of(Welcome)
        operation = await ask(lambda: send_command("decode-0", body, 0.1))
        assert (operation.command, operation.state) == ("pin", "unanswered")
        await peer.say(CommandDone(command_id=body.command_id, outcome="failed", detail="no such lease"))
        await eventually(lambda: Operation.objects.get().state, "failed")
        await peer.say(CommandDone(command_id=body.command_id, outcome="pinned"))
        await peer.say(CommandDone(command_id="nonsense", outcome="pinned"))
        await peer.say(agent_hello())
        await peer.next_of(Welcome)
    assert await ask(lambda: Operation.objects.get().outcome) == "failed"


async def test_command_without_a_connected_agent_is_refused() -> None:
    await ask(lambda: Engine.objects.create(name="alone"))
    with pytest.raises(ConflictError):
        await ask(lambda: send_command("alone", ReleaseLease(command_id=new_command_id(), key="x"), 1.0))
    with pytest.raises(Engine.DoesNotExist):
        await ask(lambda: send_command("nobody", ReleaseLease(command_id=new_command_id(), key="x"), 1.0))
    assert not await ask(Operation.objects.exists)
