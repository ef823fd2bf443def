"""What `nsa-doctor watch` reads, in the words of those who train, for messages and help."""

READABLE = (
    "a folder of TensorBoard events, wandb/offline-run-*, MLflow's mlflow.db or mlruns, the Trainer's "
    "trainer_state.json, Lightning's metrics.csv, torchtitan's log or outputs folder, any other log of steps as "
    ".jsonl or .csv (--map names its columns), or the folder of a run of nsa.train"
)
