{{/* Scrape targets: parts, the Service of each, and its ports with the job names that alerts
expect. */}}
{{- define "flexfeed.monitored" -}}
{{- $name := include "flexfeed.fullname" . -}}
{{- $parts := dict -}}
{{- $ends := list -}}
{{- if and .Values.source.enabled (not .Values.source.httpLocal) }}{{ $ends = append $ends (dict "port" "http" "job" "flexfeed-source") }}{{ end -}}
{{- if and (include "flexfeed.sidecar" .) (not .Values.relay.httpLocal) }}{{ $ends = append $ends (dict "port" "relay-http" "job" "flexfeed-relay") }}{{ end -}}
{{- if $ends }}{{ $_ := set $parts "source" (dict "service" (printf "%s-source-pods" $name) "ends" $ends) }}{{ end -}}
{{- if and .Values.relay.enabled (eq .Values.relay.mode "daemonset") (not .Values.relay.httpLocal) -}}
{{- $_ := set $parts "relay" (dict "service" (printf "%s-relay" $name) "ends" (list (dict "port" "relay-http" "job" "flexfeed-relay"))) -}}
{{- end -}}
{{- if include "flexfeed.consoleReached" . -}}
{{- $_ := set $parts "console" (dict "service" (include "flexfeed.consoleName" .) "ends" (list (dict "port" "console" "job" "flexfeed-console"))) -}}
{{- end -}}
{{- if include "flexfeed.receiverReached" . -}}
{{- $_ := set $parts "receiver" (dict "service" (printf "%s-receiver" $name) "ends" (list (dict "port" "http" "job" "flexfeed-receiver"))) -}}
{{- end -}}
{{- toYaml $parts -}}
{{- end -}}

{{/* Alerts for missing components. Prometheus discovers targets from pods with an address: for a
pod without one, or that was never created, there is no `up` that could be 0. The alerts use the
labels of the ServiceMonitors. */}}
{{- define "flexfeed.goneAlerts" -}}
{{- $top := . -}}
{{- if .Values.serviceMonitor.enabled -}}
{{- $alerts := list -}}
{{- range $part, $monitored := include "flexfeed.monitored" . | fromYaml -}}
{{- range $end := $monitored.ends -}}
{{- $what := trimPrefix "flexfeed-" $end.job -}}
{{- /* As for a console or a receiver that is down, these are tickets. */}}
{{- $severity := ternary "page" "ticket" (has $what (list "source" "relay")) -}}
{{- $alerts = append $alerts (dict
  "alert" (printf "Flexfeed%sGone" (title $what))
  "expr" (printf "absent(up{job=%q, namespace=%q, service=%q} == 1)" $end.job $top.Release.Namespace $monitored.service)
  "for" "5m"
  "labels" (dict "severity" $severity)
  "annotations" (dict
    "summary" (printf "No %s of %s in %s answers" $what $top.Release.Name $top.Release.Namespace)
    "runbook_url" "https://flexfeed.example/docs/kubernetes.md#missing-components"
  )
) -}}
{{- end -}}
{{- end -}}
{{- with $alerts -}}
{{- toYaml (list (dict "name" (printf "flexfeed-gone-%s" (include "flexfeed.fullname" $top)) "rules" .)) | nindent 2 -}}
{{- end -}}
{{- end -}}
{{- end -}}
