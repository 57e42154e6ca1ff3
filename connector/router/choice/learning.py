"""What a turn that has ended teaches about engines and pairs."""

from connector.protocol import Decision, LegReply
from connector.router.choice.chooser import Chooser
from connector.router.choice.plan import Plan
from connector.router.choice.speeds import Speeds, pair_key
from connector.router.fleet import Engine, Fleet
from connector.router.turnstate import Outcome, Turn

MIN_TOKENS = 256
"""Fewer tell more of what a request costs in any case than of the speed."""

MIN_STEPS = 8
MIN_BYTES = 256


class Learner:
    """Called once per turn; learns where there are engines to choose from. Takes only what can be told apart: compute
    without a pull, a pull with known compute."""

    def __init__(self, fleet: Fleet, speeds: Speeds, chooser: Chooser) -> None:
        self._fleet = fleet
        self._speeds = speeds
        self._chooser = chooser

    def learn(self, turn: Turn) -> None:
        plan = turn.plan
        if plan is None or not plan.is_measured:
            return
        if turn.num_prompt_tokens and plan.size.num_bytes >= MIN_BYTES and not plan.size.is_exact:
            self._speeds.tokens_per_byte.learn(turn.model, "", turn.num_prompt_tokens / plan.size.num_bytes)
        if plan.is_prefill_priced and turn.prefill_engine and turn.reply and turn.num_prompt_tokens:
            self._learn_prefill(turn, plan, turn.prefill_engine, turn.reply)
        if turn.decode_engine is not None and turn.outcome is Outcome.OK:
            self._learn_decode(turn, plan, turn.decode_engine)

    def _learn_prefill(self, turn: Turn, plan: Plan, engine: Engine, reply: LegReply) -> None:
        self._chooser.note_prefilled(engine, turn.placement, turn.num_prompt_tokens)
        pulled = reply.num_pulled_tokens
        is_hit = reply.decision is Decision.LOCAL_PREFIX_HIT
        if plan.num_remembered and turn.placement.lease is not None and (is_hit or pulled):
            missed = min(1.0, pulled / max(1, min(plan.num_remembered, plan.size.num_common)))
            self._chooser.note_found(engine, 1.0 if is_hit else 1.0 - missed)
        if is_hit or (plan.num_remembered and not pulled):
            return  # how much it computed isn't told
        computed = max(0, turn.num_prompt_tokens - pulled) + plan.num_ahead
        per_token = self._speeds.prefill.of(engine.name, engine.incarnation)
        if pulled >= MIN_TOKENS and turn.placement.lease is not None:
            seconds = turn.prefill.seconds - computed * per_token
            self._learn_pair(turn.placement.lease.engine, engine, max(0.0, seconds) / pulled)
        elif not pulled and computed >= MIN_TOKENS:
            self._speeds.prefill.learn(engine.name, engine.incarnation, turn.prefill.seconds / computed)

    def _learn_decode(self, turn: Turn, plan: Plan, engine: Engine) -> None:
        if not turn.first_event_at:
            return
        until_first = turn.first_event_at - turn.decode.start
        if turn.num_output_tokens:
            self._speeds.reply_tokens.learn(turn.model, "", float(turn.num_output_tokens))
        if not turn.request.stream:
            return
        if turn.num_output_tokens >= MIN_STEPS:
            seconds = (turn.decode.seconds - until_first) / (turn.num_output_tokens - 1)
            self._speeds.step.learn(engine.name, engine.incarnation, seconds)
        lacking = turn.num_prompt_tokens - plan.num_at_decode
        is_read = turn.reply is not None and bool(turn.reply.offer) and turn.alone is None
        if is_read and lacking >= MIN_TOKENS and turn.prefill_engine is not None and plan.decode is not None:
            seconds = max(0.0, until_first - plan.decode.chosen.cost.queue) / lacking
            self._learn_pair(turn.prefill_engine.name, engine, seconds)
            self._speeds.transfer.learn(engine.name, engine.incarnation, seconds)

    def _learn_pair(self, source: str, reader: Engine, seconds_per_token: float) -> None:
        known = self._fleet.get(source)
        incarnations = f"{known.incarnation if known else ''}>{reader.incarnation}"
        self._speeds.transfer.learn(pair_key(source, reader.name), incarnations, seconds_per_token)
