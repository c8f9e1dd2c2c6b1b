"""Every figure of a study that its runs have data for."""

import contextlib
from collections.abc import Callable
from functools import partial

from matplotlib.figure import Figure

from analysis.interaction.study import Study
from analysis.plots.contrasts import contrasts_figure
from analysis.plots.doses import dose_figure
from analysis.plots.gain_gap import gain_gap_figure
from analysis.plots.interaction import interaction_figure
from analysis.plots.matched import gap_figure
from analysis.plots.rates import rates_figure
from analysis.plots.site_depth import site_depth_figure
from analysis.plots.site_maps import site_map_figure
from analysis.plots.spectra import spectra_figure

SITE_MAPS = ("sat99", "gain_eff", "lin_cos")


def study_figures(study: Study) -> dict[str, Figure]:
    """Name -> figure; one without data is left out."""
    wanted: dict[str, Callable[[Study], Figure]] = {
        "interaction": interaction_figure,
        "interaction_contrasts": contrasts_figure,
        "interaction_gap": gap_figure,
        "interaction_rates": rates_figure,
    }
    for x in dict.fromkeys(dose.x for dose in study.design.doses):
        doses = [dose for dose in study.design.doses if dose.x == x]
        name = "".join(c if c.isalnum() else "_" for c in x)
        wanted[f"interaction_dose_{name}"] = partial(dose_figure, doses=doses)
    wanted["interaction_gain_gap"] = gain_gap_figure
    for metric in SITE_MAPS:
        wanted[f"interaction_{metric}"] = partial(site_map_figure, metric=metric)
    wanted["interaction_x_rms"] = site_depth_figure
    for row in study.design.primary.rows:
        name = "".join(c if c.isalnum() else "_" for c in row)
        wanted[f"interaction_spectra_{name}"] = partial(spectra_figure, row=row)
    figures = {}
    for name, make in wanted.items():
        with contextlib.suppress(ValueError):  # nothing was recorded for it
            figures[name] = make(study)
    return figures
