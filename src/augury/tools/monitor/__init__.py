"""Files for Prometheus, Alertmanager and Grafana that watch speculation."""
