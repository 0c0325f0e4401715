"""What a reader of a reproduction must know: settings that the paper leaves open, and ours.

Each tuple belongs to a target or to a recipe; a study shows those of both.
"""

from __future__ import annotations

from collections.abc import Iterable

from adaptask.report.study import Arm as Trial

SAMPLER = (
    "Open: alpha and tau of the tables. We take alpha 1 and tau 0.5, at which the paper holds the "
    "one while it varies the other (Figure 3).",
    "Open: what several tasks a step do to the potentials. A pair that is in more than one of them "
    "is updated once, by the mean of its confusions.",
)

METAOPTNET = (
    "ResNet-12 and its training are those of MetaOptNet, whose figures the paper quotes for the "
    "rows without gcp: 64-160-320-640 filters, features not averaged. The paper's text describes "
    "filters that double from 64 and a mean-pooling layer.",
    "Open: shots of ProtoNet in training. We take those of the test, as Snell et al. advise. The "
    "heads of MetaOptNet train with its shots (5 on CIFAR-FS, else 15) and are tested with others.",
    "MetaOptNet validates with 5 shots; here validation has the shots of the test, since the two "
    "are separate runs.",
)

CLOSER_LOOK = (
    "ProtoNet and Matching Network train as in CloserLookFewShot: Adam at 1e-3, one 5-way task of "
    "16 queries a class a step, 60,000 steps for 1 shot and 40,000 for 5.",
    "Open: whether training images are augmented, which is an option of that code. We augment, as "
    "its paper does: a random box of 8 to 100 % of the image stretched to its size, colour jitter, "
    "flip. At 32 pixels, where such a box has down to 9 x 9 of them, images are padded by 4, "
    "cropped and flipped instead. Characters are not augmented.",
    "Not as in that code: validation has 200 episodes every 500 steps instead of 100 every 100, "
    "negative cosines are kept, and test images are not cropped to their "
    "middle 87 %.",
)

MAML = (
    "MAML and MAML++ train as the configuration files of HowToTrainYourMAMLPytorch say: 50,000 "
    "steps of 2 tasks, 5 inner steps of 0.01, no augmentation, an ensemble of the five best of 100 "
    "epochs. These files switch off what the paper on MAML++ describes as annealing of the "
    "learning rate and of the derivative order; that paper has 4 tasks a step for 1 shot.",
    "Conv-4 has the 64 filters of the paper's text; those files have 48.",
    "Not as in that code: on ImageNet it clips every entry of the gradient at 10, and its MAML "
    "does not adapt the weights of normalisation to a task.",
)

REPTILE = (
    "Reptile trains as in the code of Nichol et al. The paper names Reptile-Pytorch, which says of "
    "itself that miniImageNet does not work, and which follows the gradient of the query loss "
    "after adaptation instead of moving towards the adapted weights.",
    "Reptile has no queries; 5 images a class are held out for the sampler to learn from. Open: "
    "whether queries of a test are normalised together. They are, as in Reptile-Pytorch.",
)

PICTURES = (
    "Open: backbone, shots and the moment of training that is shown. We take ProtoNet on Conv-4, "
    "5-way 1-shot, and show the whole of training where the picture can move, else its end.",
)

TABLE_1 = (
    "The paper compares its MAML++ with the figures of Antoniou et al. here, and with a "
    "replication (50.60 and 68.24) in Table 3.",
)
TABLE_2 = (
    "The paper's text speaks of gains of 1.89 and 1.0 points for ProtoNet; its table has 1.9 and "
    "0.3.",
)
TABLE_3 = (
    "The rows without gcp are what the paper calls local replications.",
    "MAML++ on CIFAR-FS, 5-shot, stands with other figures in Table 4 (73.36 and 74.58).",
)
TABLE_4 = (
    "MAML++ on CIFAR-FS, 5-shot, stands with other figures in Table 3 (73.86 and 73.98).",
    "c-sampling starts from equal weights of 1, not from probabilities, on which Eq. 3 would raise "
    "a class for being drawn at all.",
)
TABLE_5 = (
    "The paper reports seconds an epoch on an unnamed machine and does not say how many steps an "
    "epoch has; here are milliseconds a step. Only the factors can be compared.",
    "Open: tasks a step and queries. One task of 16 queries a class, for ResNet-12 too.",
    "For each setting both trainings take turns in one process, in blocks of steps. The factor is "
    "the median over turns, its range the middle half of them.",
)
TABLE_6 = (
    "Open: settings for tieredImageNet. Those of miniImageNet: 15 shots in training (the commands "
    "that come with MetaOptNet's code have 10) and label smoothing 0.1.",
)
FIGURE_3 = (
    "Open: the values on the axes, which the text does not give. We take alpha 0.1, 0.5, 1, 2, 5 "
    "and tau 0.1, 0.3, 0.5, 0.7, 0.9.",
    "Open: what the four panels of a row are. We take miniImageNet and CIFAR-FS, each with 1 and "
    "5 shots.",
)
FIGURE_4 = (
    "The paper shows five classes a picture, drawn once; which draw it is it does not say. All "
    "training classes are embedded together, with cosine distances.",
)
FIGURE_5 = ("Open: which 16 of the 64 classes are shown.",)
FIGURE_6 = ("Open: which tasks are shown; the images of a class are drawn at random.",)
FIGURE_7 = (
    "15 pictures, one every 40 of the first 600 steps. Open: which 16 of the 64 classes are shown.",
)


def of_recipes(trials: Iterable[Trial]) -> tuple[str, ...]:
    """Return what is to be known of the recipes by which some trials are trained."""
    models = {(trial.config.model.backbone, trial.config.model.learner) for trial in trials}
    used = {
        METAOPTNET: any(backbone == "resnet12" for backbone, _ in models),
        CLOSER_LOOK: bool(models & {("conv4", "protonet"), ("conv4", "matchingnet")}),
        MAML: bool(models & {("conv4", "maml"), ("conv4", "maml++")}),
        REPTILE: ("conv4", "reptile") in models,
    }
    return tuple(note for notes, is_used in used.items() if is_used for note in notes)
