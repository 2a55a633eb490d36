"""What follows from the event that the state machine handles: instructions, and the next check."""

from dataclasses import dataclass, field

from feeder.session import events
from feeder.session.state import Session
from feeder.wire.messages import NodeMessage


@dataclass(slots=True, eq=False)
class Outbox:
    """Collects instructions, in the order in which they are to be carried out."""

    now_s: float = 0.0
    """When the event happened."""
    check_at_s: float = float("inf")
    """When to handle ClockAdvanced: never later than the next deadline."""
    instructions: list[events.Instruction] = field(default_factory=list)

    def add(self, instruction: events.Instruction) -> None:
        """Add an instruction."""
        self.instructions.append(instruction)

    def send(self, peer: bytes, message: NodeMessage) -> None:
        """Add a message to a client."""
        self.instructions.append(events.Send(peer, message))

    def close_if_unused(self, session: Session) -> None:
        """Free an ended session's memory, unless workers write to it or its client maps it."""
        if session.in_flight == 0 and not session.is_held:
            self.instructions.append(events.CloseSlots(session.number))

    def check_by(self, at_s: float) -> None:
        """Have ClockAdvanced handled by then."""
        self.check_at_s = min(self.check_at_s, at_s)

    def take(self) -> list[events.Instruction]:
        """Return the instructions, and forget them."""
        taken, self.instructions = self.instructions, []
        return taken
