"""The profiles that a storage keeps, to be used again by every study of the same workload on the same machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import optuna
from pydantic import TypeAdapter, ValidationError

from scalesearch.core.profile import Profile, ProfileFingerprint, ReplicaProfile

STUDY_NAME = "scalesearch profiles"  # an Optuna study without trials, whose attributes they are

_PART = TypeAdapter(ReplicaProfile)


class ProfileStore:
    """The profiles in a storage, by fingerprint and number of replicas."""

    def __init__(self, storage: optuna.storages.BaseStorage) -> None:
        self._study = optuna.create_study(study_name=STUDY_NAME, storage=storage, load_if_exists=True)

    def keep(self, fingerprint: ProfileFingerprint, part: ReplicaProfile) -> None:
        """Keep what was measured with a number of replicas, in place of what was before."""
        self._study.set_user_attr(_key(fingerprint, part.replicas), _PART.dump_python(part, mode="json"))

    def find(self, fingerprint: ProfileFingerprint, replicas: int) -> ReplicaProfile | None:
        """What was measured with so many replicas, if it was, and by a scalesearch that kept what this one needs."""
        stored = self._study.user_attrs.get(_key(fingerprint, replicas))
        try:
            return _PART.validate_python(stored) if stored is not None else None
        except ValidationError:
            return None

    def profile(self, fingerprint: ProfileFingerprint, replicas: Sequence[int]) -> Profile | None:
        """What was measured with these numbers of replicas; None if nothing was."""
        found = [part for k in sorted(set(replicas)) if (part := self.find(fingerprint, k)) is not None]
        return Profile(fingerprint=fingerprint, by_replicas=tuple(found)) if found else None


def _key(fingerprint: ProfileFingerprint, replicas: int) -> str:
    digest = hashlib.sha256(json.dumps(fingerprint.flat(), sort_keys=True).encode()).hexdigest()
    return f"{digest[:32]}-r{replicas}"
