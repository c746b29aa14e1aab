"""The plane of 2DGBNN: weights as points (mean, std), covered by a few Gaussians. Pure functions, no networks.

In the order of the data flow: `surveying` runs stage 2 and finds outliers; `histogram` summarises millions of
points in cells; `centres` is K-means, `mixture` EM on `blocks` of cells and the choice of K; `search`
assigns every point exactly; `merging` reduces the number of Gaussians; `ellipses` blends points that fit none.
`gaussians` has the closed forms, `chunks` parallelism with bitwise equal results.
"""

from pocketbayes.plane.centres import kmeans
from pocketbayes.plane.codes import entropy_bits
from pocketbayes.plane.ellipses import blend, ellipse_points
from pocketbayes.plane.gaussians import mahalanobis_squared, merge, w2_squared
from pocketbayes.plane.histogram import Grid, Histogram, make_grid, make_histogram
from pocketbayes.plane.merging import dissolve, merge_all
from pocketbayes.plane.mixture import PlaneMixture, fit_mixture
from pocketbayes.plane.surveying import Plane, PlaneOptions, PlaneSettings, outliers, survey

__all__ = [
    "Grid",
    "Histogram",
    "Plane",
    "PlaneMixture",
    "PlaneOptions",
    "PlaneSettings",
    "blend",
    "dissolve",
    "ellipse_points",
    "entropy_bits",
    "fit_mixture",
    "kmeans",
    "mahalanobis_squared",
    "make_grid",
    "make_histogram",
    "merge",
    "merge_all",
    "outliers",
    "survey",
    "w2_squared",
]
