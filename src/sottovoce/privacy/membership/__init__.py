"""Whether a record was used: rates, shadow models, and the filter matched to messages."""

from sottovoce.privacy.membership.over_training import (
    TrainingMembership,
    controls_pass,
    membership_over_training,
)
from sottovoce.privacy.membership.rates import (
    Membership,
    permitted_auc,
    permitted_tpr,
    told_apart,
)
from sottovoce.privacy.membership.shadow import (
    Shadows,
    ShadowSettings,
    lira,
    rmia,
    shadow_membership,
    train_shadows,
)

__all__ = [
    "Membership",
    "ShadowSettings",
    "Shadows",
    "TrainingMembership",
    "controls_pass",
    "lira",
    "membership_over_training",
    "permitted_auc",
    "permitted_tpr",
    "rmia",
    "shadow_membership",
    "told_apart",
    "train_shadows",
]
