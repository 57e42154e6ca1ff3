"""Runs the demo against a running stack and exits with 1 and one sentence when a promise isn't kept."""

import argparse
import os
import sys
import time
from pathlib import Path

import httpx
import openai

from deploy.demo.conversation import TOOLS, Message, scripted_turns
from deploy.demo.policy import is_reuse_on, set_reuse
from deploy.demo.record import LATER_SECONDS, SOON_SECONDS, DemoError, Recorder, TurnRow, new_traceparent
from deploy.demo.tables import HEADER, cells_of, render, side_by_side
from deploy.local.environment import Options, read_options

MAX_NEW_TOKENS = 32


def converse(client: openai.OpenAI, recorder: Recorder, seed: int) -> list[TurnRow]:
    """One conversation, streamed, as a plain OpenAI client has it: no session id, the whole history each turn.

    It never waits for the control plane: a turn whose record is late is printed as such and read at the end.
    """
    messages: list[Message] = []
    turns: list[tuple[str, float]] = []
    rows: dict[int, TurnRow] = {}
    for number, appended in enumerate(scripted_turns(seed), start=1):
        messages += appended
        trace_id, traceparent = new_traceparent()
        ttft_ms, reply = stream_turn(client, messages, traceparent)
        messages.append({"role": "assistant", "content": reply})
        turns.append((trace_id, ttft_ms))
        if row := recorder.turn_row(trace_id, ttft_ms, SOON_SECONDS):
            rows[number] = row
            say("  " + "  ".join(cells_of(number, row)))
        else:
            say(f"  {number}  answered after {ttft_ms:.0f} ms; its record is not there yet")
    for number, (trace_id, ttft_ms) in enumerate(turns, start=1):
        if number not in rows and (row := recorder.turn_row(trace_id, ttft_ms, LATER_SECONDS)):
            rows[number] = row
            say("  late: " + "  ".join(cells_of(number, row)))
    if len(rows) < len(turns):
        raise DemoError(f"the records of {len(turns) - len(rows)} turns did not arrive; see make status and make logs")
    return [rows[number] for number in sorted(rows)]


def stream_turn(client: openai.OpenAI, messages: list[Message], traceparent: str) -> tuple[float, str]:
    """(ms to the first text, the reply)."""
    started = time.perf_counter()
    stream = client.chat.completions.create(  # type: ignore[call-overload]  # messages are plain dicts
        model="tiny",
        messages=messages,
        tools=TOOLS,
        tool_choice="none",
        max_tokens=MAX_NEW_TOKENS,
        temperature=0,
        stream=True,
        extra_headers={"traceparent": traceparent},
        extra_body={"ignore_eos": True},
    )
    ttft_ms, reply = 0.0, ""
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            ttft_ms = ttft_ms or (time.perf_counter() - started) * 1e3
            reply += chunk.choices[0].delta.content
    return ttft_ms, reply


def say(text: str) -> None:
    print(text, flush=True)


def run(options: Options) -> None:
    secret = options.layout.run
    recorder = Recorder(options.controlplane_url, _read(secret / "admin-token"))
    client = openai.OpenAI(base_url=f"{options.router_url}/v1", api_key=_read(secret / "api-key"), max_retries=0)
    seed = int(time.time())
    if not is_reuse_on(recorder):
        set_reuse(recorder, True, "demo starts with reuse", say)
    say("warming up: the engines compile and shake hands on their first requests")
    for text in ("Hello.", "Hello again."):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}], max_tokens=4)
    say(f"\nwith reuse ({', '.join(HEADER)}):")
    with_reuse = converse(client, recorder, seed)
    say("")
    try:
        set_reuse(recorder, False, "demo: the same without reuse", say)
        say(f"\nwithout reuse ({', '.join(HEADER)}):")
        without = converse(client, recorder, seed + 1)
    finally:
        say("")
        set_reuse(recorder, True, "demo ends: reuse as before", say)
    for title, rows in (("with reuse", with_reuse), ("without reuse", without)):
        say(f"\n{title}\n" + render(HEADER, [cells_of(turn, row) for turn, row in enumerate(rows, start=1)]))
    say("\nside by side\n" + side_by_side(with_reuse, without))
    _check(with_reuse, without)


def _check(with_reuse: list[TurnRow], without: list[TurnRow]) -> None:
    if not all(row.pulled_tokens > 0 for row in with_reuse[1:]):
        raise DemoError("a turn after the first pulled nothing although reuse was on")
    if any(row.pulled_tokens for row in without):
        raise DemoError("a turn pulled although reuse was off")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise DemoError(f"{path} can't be read ({error.strerror}); run make up first") from None


def main() -> int:
    argparse.ArgumentParser(prog="python -m deploy.demo", description=__doc__).parse_args()
    try:
        run(read_options(os.environ, Path(__file__).resolve().parents[2]))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except (httpx.TransportError, openai.APIConnectionError) as error:
        print(f"demo: the stack doesn't answer ({error}); run make up, then make status", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
