"""What was decided for one turn, and on what grounds."""

from collections.abc import Callable
from dataclasses import dataclass, field

from connector.router.choice.choose import Choice, Why
from connector.router.choice.costs import PrefillWork
from connector.router.choice.sizes import PromptSize

NO_WORK = PrefillWork(0, 0)


@dataclass(slots=True)
class Plan:
    """Filled as the turn's engines are chosen. ``measure`` tells the prompt's size; it is asked only where it matters:
    an engine without a rival isn't priced. ``offered_by``: the engine whose lease may be reused. ``num_remembered``:
    tokens of the prompt that the chosen prefill engine computed lately; ``num_ahead``: those that it computes first."""

    measure: Callable[[], PromptSize]
    offered_by: str = ""
    decode: Choice | None = None
    prefill: Choice | None = None
    num_remembered: int = 0
    num_ahead: float = 0.0
    work: PrefillWork = NO_WORK
    is_decode_local: bool = False
    _size: PromptSize | None = field(default=None, init=False)

    @property
    def size(self) -> PromptSize:
        if self._size is None:
            self._size = self.measure()
        return self._size

    @property
    def is_measured(self) -> bool:
        return self._size is not None

    @property
    def is_prefill_priced(self) -> bool:
        return self.prefill is not None and self.prefill.why is not Why.ONLY

    @property
    def num_at_decode(self) -> int:
        """Tokens from the prompt's start that the chosen decode engine holds, as far as the match tells."""
        return self.num_held_by(self.decode.chosen.name) if self.decode is not None else 0

    @property
    def num_lacking(self) -> int:
        """Tokens that the chosen decode engine lacks."""
        return max(0, self.size.num_tokens - self.num_at_decode)

    def num_held_by(self, engine: str) -> int:
        return self.size.num_common if engine == self.offered_by else 0
