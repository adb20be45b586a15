"""The options of the data set and the model."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from gradwire.core.records.options import MAY_CHANGE_ALWAYS, option

if TYPE_CHECKING:
    Named: TypeAlias = Any
    """A name; in Python also a function or class of the user's, which Options holds as a `lookup.UserObject`."""
else:
    Named = str  # for the command line, which is made from it


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What is trained, and on what."""

    dataset: Named = "digits"
    """digits and text (are here), textfile, mnist, fashion_mnist, cifar10, cifar100, svhn, imagefolder, synthetic, or
    yourmodule:function, which returns (train_x, train_y, test_x, test_y) or two map-style datasets."""
    data_dir: str = field(default="data", metadata=MAY_CHANGE_ALWAYS)
    """Where data sets lie, or are downloaded to; for imagefolder the folder that holds train/ and val/; for textfile
    the file, in UTF-8."""
    task: Named | None = None
    """What the loss is and what is scored: classification, language_model, or yourmodule:function, which is called with
    (model, x, y) and returns loss, (loss, n) or (loss, n, scores): see docs/data.md. Default: what the data set is
    for."""
    train_size: int = option(0, least=0)
    """Use only this many training samples; 0: all."""
    model: Named = "mlp"
    """mlp, lenet, mobilenet_v2, resnet18, resnet34, resnet50, vgg11, alexnet, gpt (for text), or yourmodule:function,
    which is called with (input_shape, n_classes) and the --model_options, and returns the network."""
    model_options: str = ""
    """Options of gpt or of yourmodule:function, such as layers=4,width=128; values as in Python."""
