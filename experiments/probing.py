"""What a probed step looks at."""

from blocks.looking import LOOKS
from experiments.parts import Part


class Probe:
    """Chooses what a probed step measures beside gradients and the stream.

    Args:
        norms: what every norm of the stream meets and does (`blocks.norms.looks`), from
            the forward pass of the step itself, on its own batch.
        logits: the largest attention score of each head.
        spectra: singular values of matrices and of the step they take
            (`experiments.spectra`): some fifty matrix products for every matrix.

    Quantities: docs/run_directory.md.
    """

    def __init__(
        self, *, norms: bool = True, logits: bool = True, spectra: bool = False
    ):
        given = {"norms": norms, "logits": logits}
        self.looks = tuple(look for look in LOOKS if given[look])
        self.spectra = spectra


def probe_of(task: Part) -> Probe:
    """The probe of a task; a task that has no choice of one measures no more."""
    if "probe" not in dict(task.keywords):
        return Probe(norms=False, logits=False)
    probe = task["probe"]
    return Probe() if probe is None else probe.build({}, "task.probe")
