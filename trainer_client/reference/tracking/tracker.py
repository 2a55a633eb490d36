"""The interface of everything that a run reports to. Only rank 0 has trackers."""

from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport


class Tracker:
    """Follows a run; each method does nothing here.

    Called in the order begin, then for each epoch begin_epoch, log_step for some of its steps,
    begin_evaluation where there is one, end_epoch; then end. ``close`` comes last, also after an
    error or Ctrl-C, without ``end`` before it then. After a resume ``begin`` has the earlier
    epochs.
    """

    def begin(self, run: RunInfo) -> None:
        """The model and the loaders are made; the first step comes next."""

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins, or is resumed in its middle."""

    def log_step(self, report: StepReport) -> None:
        """The latest step."""

    def begin_evaluation(self, epoch: int) -> None:
        """The evaluation after an epoch begins."""

    def end_epoch(self, result: EpochResult) -> None:
        """An epoch is complete, with its evaluation if it has one."""

    def end(self, outcome: Outcome) -> None:
        """The run has ended, with its checkpoint saved."""

    def close(self) -> None:
        """Free what is held. Idempotent."""
