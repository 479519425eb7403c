"""Methods that tests add to the worker with ``worker_extension_cls``."""


class Spoiler:
    """Breaks things inside a running engine."""

    def spoil_drafter(self) -> None:
        """Makes the learned drafter's outputs no numbers, as an external trainer's bad push would."""
        self.model_runner.drafter._runtime._model.norm.weight.fill_(float("nan"))
