"""What each key of a job file means, in one line, for the JSON schema.

The keys of [job] are the estimator's parameters: what they mean is said in the table of estimators/parameters.py.
"""

from __future__ import annotations

from fedspan.jobs.field.genotype_keys import SAYS_OF_GENOTYPES

SAYS: dict[str, dict[str, str]] = {
    "job": {"task": "what is to be learned"},
    "data": {
        "clients": "one file or address per client, all with the same columns: a list, or a table name = path",
        "views": "one file or address per client, all with the same rows: a list, or a table name = path",
        "columns": "the features; default: all columns",
        "id": "a column of ids: left out of the features, and compared between views",
        "match": "how rows of views are matched by their ids: psi (blinded), digest (under a secret), or order (only "
        "compared)",
        "label": "the column of classes or targets: learned by classifiers and regressions, left out by the others",
        "weight": "a column that says how often each row counts: left out of the features",
        "client_weight": "what a client counts (pca, svd): rows, equal, or a table client = weight; default: rows",
        "kind": "what the clients have: table, or genotypes (PLINK and PGEN files); default: table",
        "held_out": "other common rows of each view, for job.patience",
        "categories": "columns of words: a list (their words are agreed on), or a table column = [words]",
        "missing": "what becomes of missing values: refused, their rows dropped, or filled with the common means; "
        "mask and drop are for views of gcca that lack entities",
        "fill": "what fills the gaps of each feature with missing = 'mean'; default: the common means",
        "n_features": "of LIBSVM files, which do not say it; default: the most that any client has",
        "separator": "between cells of text files; default: a comma, else a semicolon or a tab",
        "encoding": "of text files; default: UTF-8",
        "decimal": "the decimal sign of text files: . or ,",
        "na_values": "further words that mean a missing value",
        "true_values": "words that are 1 in columns of numbers",
        "false_values": "words that are 0 in columns of numbers",
        "dates": "columns of dates (a list, or a table column = format), read as days since 1970-01-01",
        "ignore_case": "columns of words whose upper and lower case does not matter",
        "multiply": "columns of numbers with a factor, to give them the units of the other clients",
        "names": "names of all columns, in place of the first line of the file",
        "sheet": "of Excel files with several sheets",
        "network": "for deep-gcca: the function of yours that makes a view's network, as file.py:function; one for all "
        "views, or a table view = file.py:function. With --on the sites' own files name them",
        "table": "with --on: which of the sites' tables; default: the one named default",
    },
    "genotypes": SAYS_OF_GENOTYPES,
    "privacy": {
        "epsilon": "how much all that leaves may say about any single row: smaller is more private",
        "delta": "the probability with which epsilon may be exceeded; less than 1 / number of rows",
        "row_norm": "a public bound on the norm of a row (classifiers: of a row's gradient); longer ones are cut; "
        '"auto" finds one for 3 % of the budget; "unit" gives every row the norm 1',
        "center": 'a bound on rows before centering, for their mean; "robust" finds one for 3 % of the budget',
        "neighbours": "what epsilon speaks of: a row more or less, or one row in the place of another",
        "expect": "a public guess of the mean square along the last component, for the forecast of the error",
        "simulate": "draw the noise from the seed, so that runs repeat; it then protects nobody",
        "budgets": "a folder with <client>.json for each client: what it may spend over all runs",
    },
    "secure": {
        "enabled": "secure aggregation: the server sees sums over the clients only",
        "threshold": "how many clients must stay for a sum to be read",
        "verified": "every client checks what the server asks and shows; default in a federation: if it can",
        "groups": "of clients, over which verified sums are taken: lists of names, or the size of a group",
    },
    "run": {
        "checkpoint_every": "rounds between two checkpoints",
        "timeout": "seconds that a client may take to answer",
        "min_clients": "go on if at least this many clients answer; default: all must",
        "retries": "how often a client that did not answer is asked again",
        "transcript": "keep every message, for `fedspan audit`: as secret as the data",
    },
}
