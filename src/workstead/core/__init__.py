"""The mechanisms that verbs share: lookup, mounting, states, the gate, runs, quotas, tokens."""
