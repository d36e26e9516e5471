"""What the help says of options that several commands share."""

GRAPH = "ring:5, grid:3x4, erdos-renyi:20:0.3 or an edge-list file."
WEIGHTS = "metropolis, lazy-metropolis, max-degree, best-constant or a .csv with W."
INSECURE_SEED = "Make the private numbers repeatable (studies only)."
AS_JSON = "Print only JSON on stdout."
