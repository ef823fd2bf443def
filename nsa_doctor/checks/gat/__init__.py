"""GAT: gates, which weigh one part of a model against another."""
