"""The commands, one file each: ``add_options(parser)`` says what it takes, ``run(options, changes)`` does it.

``COMMANDS`` is the whole list. A command's file is only imported when it is asked for, because most bring the whole
house with them.
"""

COMMANDS: dict[str, str] = {
    "demo": "train and evaluate on generated pictures",
    "pretrain": "pre-train a backbone",
    "launch": "run a command as several processes that share the work",
    "evaluate": "measure a frozen backbone by any protocol",
    "report": "one self-contained HTML page of one run or several",
    "figure": "draw a figure of one run or several",
    "views": "draw the views that a recipe or run trains on",
    "export": "write a run's backbone for other libraries",
    "embed": "features of any number of pictures, as a file",
    "search": "the pictures nearest to a picture, as a contact sheet",
    "bench": "measure speed and memory",
    "cost": "the paper's cost table on this machine",
    "recipes": "list the recipes with the paper's numbers",
    "methods": "list the methods with their cost and the paper's numbers",
    "reproduce": "make a table or figure of the paper",
    "record": "write a finished run into the ledger",
    "results": "write the page of measured results, with its pictures",
}
