"""What nothing may be left of once every request and lease of an engine is over."""

from typing import Any

from connector.engine.fence import NUM_LANDING_WORDS
from connector.engine.worker import BackhaulWorker
from tests.contract.engine_bench import Engine


def leftovers_of(engine: Engine) -> list[str]:
    """Tables that still know a request, by name; leases are named too, and blocks that are not free."""
    found = [name for name, place in _tables(engine).items() if len(place)]
    num_held = engine.num_blocks - 1 - engine.num_free_blocks
    return found + ([f"{num_held} blocks"] if num_held else [])


def _tables(engine: Engine) -> dict[str, Any]:
    core, scheduler = engine.core, engine.scheduler
    tables: dict[str, Any] = {
        "requests": scheduler.requests,
        "finished_recving": scheduler.finished_recving_kv_req_ids,
        "failed_recving": scheduler.failed_recving_kv_req_ids,
        "legs": core.legs,
        "fence slots": core.fence._slots._held,
        "transfers": core.transfers._legs,
        "ranks": core.transfers._ranks,
        "leases": list(core.control.table),
        "quarantine": range(len(core.quarantine)),
        "quarantine ranks": core.quarantine._open_ranks,
        "heartbeats": core._heartbeat_by_engine,
        "own deadlines": core.pull_deadlines,
    }
    for worker in engine.workers:
        tables |= {f"{name} {worker.tp_rank}": place for name, place in _tables_of(worker).items()}
    return tables


def _tables_of(worker: BackhaulWorker) -> dict[str, Any]:
    agent, pulls, memory = worker._agent, worker._pulls, worker._fence_memory
    return {
        "pulls": agent.pulls,
        "fence targets": agent.fence_targets,
        "stray fences": agent.stray_fences,
        "deadlines": pulls.deadlines,
        "late reads": pulls.late,
        "late metas": pulls.late.metas,
        "kept": worker._leases._kept,
        "early releases": worker._leases._early_releases,
        "words": range(memory.num_words),
        "landings": range(NUM_LANDING_WORDS - memory.num_free_landings),
        "early notices": range(agent.notices.num_waiting),
        "receiving": worker._recving_metadata,
        "reads": worker._recving_transfers,
        "failures": worker._recv_failures,
        "to send": worker._reqs_to_send,
        "to process": worker._reqs_to_process,
        "live handles": agent._agent.live_handles(),
    }
