"""`sottovoce audit`: what an observer of the messages learns."""

from pathlib import Path

from sottovoce.cli.fields import command
from sottovoce.studies.audited import ImageAuditSettings, audit_study

audit = command(
    ImageAuditSettings, audit_study, Path("sottovoce-results/audit"), parts="finished-rows"
)
