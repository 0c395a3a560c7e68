"""Train and use transformer language models with Bireme.

    import bireme

    with bireme.Model("runs/mine") as model:
        print(model.generate("The", max_new_tokens=20, temperature=0))

    for row in bireme.train("recipes/mine.yaml", train__max_steps=100):
        print(row["step"], row.get("loss"))
"""

from ._library import BiremeError, BiremeWarning, version
from ._model import Answer, Label, Model, Token
from ._training import metrics, train

__all__ = [
    "Answer",
    "BiremeError",
    "BiremeWarning",
    "Label",
    "Model",
    "Token",
    "metrics",
    "train",
    "version",
]
__version__ = version()
