{{/* What the schema cannot say: values that do not go together. Every mistake is named, with what to do. */}}
{{- define "flexfeed.checks" -}}
{{- $values := .Values -}}
{{- $wrong := list -}}
{{- $source := $values.source -}}
{{- $database := $values.database -}}
{{- if and $source.enabled (gt (int $source.replicas) 1) -}}
{{- if eq $database.mode "sqlite" -}}
{{- $wrong = append $wrong "source.replicas: a database in a file is for one source; set database.mode to bundled or external" -}}
{{- end -}}
{{- if not $source.tls.existingSecret -}}
{{- $wrong = append $wrong "source.replicas: all sources have to show receivers the same certificate; put one into a Secret and name it in source.tls.existingSecret" -}}
{{- end -}}
{{- if and (include "flexfeed.sidecar" .) (ne $source.service.type "NodePort") (ne (len $values.relay.addresses) (int $source.replicas)) -}}
{{- $wrong = append $wrong "relay.addresses: with several sources, name the address of each one's Service, in their order, for each has a relay of its own" -}}
{{- end -}}
{{- end -}}
{{- if and (eq $database.mode "external") (include "flexfeed.needsDatabase" .) (not $database.existingSecret) (not $database.url) -}}
{{- $wrong = append $wrong "database: mode external needs database.existingSecret (a Secret with the URL) or database.url" -}}
{{- end -}}
{{- if and $database.existingSecret $database.url -}}
{{- $wrong = append $wrong "database: leave out database.url or database.existingSecret" -}}
{{- end -}}
{{- if and $values.console.enabled (eq $database.mode "sqlite") (not $source.enabled) -}}
{{- $wrong = append $wrong "console.enabled: with database.mode sqlite it is inside the source, which source.enabled leaves out" -}}
{{- end -}}
{{- if and (eq $database.mode "sqlite") (not $source.persistence.enabled) $source.enabled -}}
{{- $wrong = append $wrong "source.persistence.enabled: with database.mode sqlite the volume holds everything" -}}
{{- end -}}
{{- if and $values.receiver.enabled (not $values.receiver.link) (not $values.receiver.existingSecret) -}}
{{- $wrong = append $wrong "receiver: it needs an enrolment link: receiver.existingSecret (a Secret with it) or receiver.link" -}}
{{- end -}}
{{- if and $values.receiver.link $values.receiver.existingSecret -}}
{{- $wrong = append $wrong "receiver: leave out receiver.link or receiver.existingSecret" -}}
{{- end -}}
{{- if and $values.console.ingress.enabled (not $values.console.ingress.host) -}}
{{- $wrong = append $wrong "console.ingress.host: name the host that people type" -}}
{{- end -}}
{{- if and $values.console.httpRoute.enabled (not $values.console.httpRoute.parentRefs) -}}
{{- $wrong = append $wrong "console.httpRoute.parentRefs: name the Gateway" -}}
{{- end -}}
{{- if not (or $source.enabled $values.console.enabled $values.receiver.enabled (and $values.relay.enabled (eq $values.relay.mode "daemonset"))) -}}
{{- $wrong = append $wrong "nothing is enabled: set source.enabled, console.enabled, receiver.enabled, or relay.enabled with relay.mode daemonset" -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "\n\nThese values do not go together:\n- %s\n" (join "\n- " $wrong)) -}}
{{- end -}}
{{- end -}}
