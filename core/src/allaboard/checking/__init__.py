"""All problems of a job at once: `job` checks the fields of a job, `files` the files that it names, too."""
