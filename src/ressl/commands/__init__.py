"""The commands, one file each: ``add_options(parser)`` says what it takes, ``run(options, changes)`` does it.

``COMMANDS`` is the whole list. A command's file is only imported when it is asked for, because most bring the whole
house with them.
"""

COMMANDS: dict[str, str] = {
    "demo": "train and evaluate on generated pictures",
    "pretrain": "pre-train a backbone",
    "launch": "run a command as several processes that share the work",
    "evaluate": "measure a run's frozen backbone",
    "bench": "measure speed and memory",
    "cost": "the paper's cost table on this machine",
    "recipes": "list the recipes with the paper's numbers",
    "record": "write a finished run into the ledger",
}
