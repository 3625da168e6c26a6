"""The fixtures of this folder."""

from tests.agent.agents import agents, script

__all__ = ["agents", "script"]
