"""What each task shows to the server, for tasks that do not say it themselves with `@task(shows=…)`."""

from __future__ import annotations

_PRODUCTS = "products of its second-moment matrix with the server's blocks (enough of them give the matrix itself)"
_LOCAL = "its estimate after local steps, and its share of the variances"
_SPECTRAL_WORDS = {
    "count": "its number of rows and its column sums",
    "size": "its number of rows",
    "spread": "its column sums of squares around the common mean",
    "settle": "its number of rows and columns, and its total sum of squares",
    "gram": "its whole second-moment matrix",
    "multiply": _PRODUCTS,
    "multiply_on_grid": _PRODUCTS + ", rounded",
    "iterate": _LOCAL,
    "iterate_aligned": _LOCAL,
    "split": "its masked product with the server's basis (obscured, not protected), and its share of the variance",
    "variances": "its variances along the components",
    "show": "of the largest client, its own basis after local steps",
    "span": "the leading eigenvectors of its own second-moment matrix",
    "weigh": "the leading eigenvectors and variances of its own second-moment matrix",
    "census": "how many rows it has, and how many of them are longer than the bound",
    "add_up": "its column sums",
    "energy": "its total sum of squares",
    "triangle": "its whole second-moment matrix",
    "project": "products of its second-moment matrix with the server's blocks",
    "leading": "the leading eigenvectors of its own second-moment matrix, rounded",
}


_FOLDS = "of all its rows and of all but each fifth of them"
_PERSONAL = {
    "count": "its number of rows and its column sums",
    "spread": "its number of rows and its column sums of squares",
    "size": "its number of rows and its column sums of squares",
    "sketch": f"the leading eigenvectors and variances of its own second-moment matrix ({_FOLDS}), its number of "
    "rows and its column sums of squares",
    "gram": f"its whole second-moment matrix ({_FOLDS})",
    "validate": "its reconstruction error on held-out rows, for each λ that was tried",
    "settle": "how far its own components are from the shared ones",
    "collect": "its own components, its mean, its number of rows, and how far its components are from the shared ones",
    "show": "its own components of that round, and its part of the objective",
    "project": "its projection of the shared components on its own, and its part of the objective",
    "descend": "its gradient for the shared components, and its part of the objective",
    "deflate": "products of its second-moment matrix with the shared components, less its own directions",
}
_VIEW_WORDS = {
    "identify": "how many rows it has, and one digest of their ids if a column of ids is named",
    "identify_rows": "a digest of each row's id (whoever guesses an id can check the guess)",
    "open_view": "how many features it has, and how many of them are independent",
    "sketch": "a few random combinations of its features for each entity, rounded",
    "multiply": "the server's blocks projected on the span of its features (enough of them give that span)",
    "multiply_on_grid": "the server's blocks projected on the span of its features, rounded (enough of them give that "
    "span)",
    "leading": "the leading directions of its own features among the entities, rounded",
    "begin": "a random combination of its features for each entity",
    "update": "for each entity what its features say of the common representation, and its part of the cost",
    "reduce": "the leading left singular vectors of its view: its own main directions among the entities",
    "show": "what its features say of the rows held out",
    "weigh": "its weights and offsets, its correlations with the common representation, and how much of its variance "
    "that holds",
}
_DEEP = {
    **_VIEW_WORDS,
    "start": "for each entity the output of its network before training",
    "train": "for each entity the output of its network, its part of the cost, and its correlation",
}
_LEARNING = {
    "open": "its numbers of rows and features",
    "gradient": "the loss and its gradient, summed over a batch of its rows",
    "losses": "the loss summed over all its rows",
    "clipped": "gradients of a batch of its rows, each cut to a bound, summed",
    "sampled": "gradients of rows drawn in secret, each cut to a bound, summed",
    "local": "the model's parameters after its own local steps, and its loss",
}
_VERTICAL = {
    "open": "its numbers of rows and features",
    "take": "",  # it is told its parameters, and answers nothing
    "forward": "for each row of a batch what its features contribute to the hidden cells",
    "head": "the loss, and the gradient of the output layer, summed over a batch (from the labels, which all clients "
    "know)",
    "backward": "the gradient of its own part of the parameters, summed over a batch",
    "backward_in_place": "the gradient of its own part of the parameters, summed over a batch",
}
_COLUMNS = {  # asked before any of them
    "describe_columns": "the names and units of its columns",
    "list_categories": "the categories that it has seen in the columns of categories",
    "add_up_columns": "its column sums and numbers of values that are not missing",
}
WORDS = {
    **dict.fromkeys(("PersonalAuto", "PersonalEigen", "PersonalPaper", "PerPca"), _PERSONAL),
    **dict.fromkeys(("MaxVarKrylov", "MaxVarDavidson", "AltMaxVar", "CuteMaxVar", "Mvlsa"), _VIEW_WORDS),
    "DeepMaxVar": _DEEP,
    **dict.fromkeys(("Ssca", "SscaMomentum", "FedSgd", "FedAvg"), _LEARNING),
    **dict.fromkeys(("VerticalSsca", "VerticalSgd"), _VERTICAL),
    **dict.fromkeys(
        ("Gram", "Krylov", "Davidson", "Ssi", "LocalPower", "FedPower", "Faps", "Uda", "Wda"), _SPECTRAL_WORDS
    ),
    **dict.fromkeys(("DrSvd", "NoisyGram", "NoisyPower", "PaperNoise"), _SPECTRAL_WORDS),
    "AgreeOnColumns": _COLUMNS,
}
