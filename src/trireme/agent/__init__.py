"""Several machines, one run: an agent on each machine starts its workers, watches them, and starts them again.

The agents meet at the rendezvous, which the agent of worker 0 serves. `member.py` is what one agent decides,
`rendezvous.py` what all of them decide together; both take events and give instructions, and know no socket and
no clock. `loop.py` carries the instructions out, `agent.py` is the process.
"""
