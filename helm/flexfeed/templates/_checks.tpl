{{/* Checks that the schema cannot express: values that conflict, and values without an effect. Each
mistake has a line of its own, with the remedy. Parts that are switched off are not checked. */}}
{{- define "flexfeed.checks" -}}
{{- $wrong := include "flexfeed.wrongNulls" . -}}
{{- if not (trim $wrong) -}}
{{- range list "Names" "Labels" "Database" "Source" "SourceService" "Relay" "Groups" "Console" "Receiver" "Settings" -}}
{{- $wrong = printf "%s\n%s" $wrong (include (printf "flexfeed.wrong%s" .) $) -}}
{{- end -}}
{{- end -}}
{{- $lines := list -}}
{{- range splitList "\n" $wrong }}{{ with trim . }}{{ $lines = append $lines . }}{{ end }}{{ end -}}
{{- if $lines -}}
{{- fail (printf "\n\nThese values conflict:\n- %s\n" (join "\n- " $lines)) -}}
{{- end -}}
{{- end -}}

{{/* Values that the templates need, and that null would remove. */}}
{{- define "flexfeed.neededValues" -}}
image image.digests image.pullPolicy serviceAccount serviceAccount.create
database database.mode database.urlKey database.passwordKey database.bundled database.bundled.image database.bundled.runAsUser
database.bundled.persistence database.bundled.persistence.enabled database.bundled.persistence.size
source source.enabled source.replicas source.retention source.hostNetwork source.listenAddress source.httpPort source.httpLocal source.tls source.signingKey
source.service source.service.type source.service.port source.service.relayPort source.service.externalTrafficPolicy
source.persistence source.persistence.enabled source.persistence.size source.terminationGracePeriodSeconds source.podDisruptionBudget
relay relay.enabled relay.mode relay.udpPorts relay.capture relay.httpPort relay.httpLocal
console console.enabled console.replicas console.httpPort console.httpLocal console.service console.service.type console.service.port
console.ingress console.ingress.enabled console.httpRoute console.httpRoute.enabled console.httpRoute.tls console.podDisruptionBudget
receiver receiver.enabled receiver.kind receiver.linkKey receiver.hostNetwork receiver.httpPort receiver.httpLocal
receiver.service receiver.service.enabled receiver.service.port receiver.persistence receiver.persistence.enabled receiver.persistence.size
log log.format log.level networkPolicy networkPolicy.enabled networkPolicy.databasePort
serviceMonitor serviceMonitor.enabled serviceMonitor.interval prometheusRule prometheusRule.enabled dashboard dashboard.enabled
{{- end -}}

{{- define "flexfeed.wrongNulls" -}}
{{- range $path := regexSplit "\\s+" (include "flexfeed.neededValues" .) -1 }}
{{- $here := $.Values }}
{{- $parent := $here }}
{{- range splitList "." $path }}
{{- $parent = $here }}
{{- if kindIs "map" $here }}{{ $here = index $here . }}{{ end }}
{{- end }}
{{- /* If a whole part is missing, its name is enough. */}}
{{- if and (kindIs "invalid" $here) (kindIs "map" $parent) }}
{{ $path }}: null removes it, and the chart needs it: leave it out for the default, or set another value
{{- end }}
{{- end }}
{{- end -}}

{{- define "flexfeed.wrongNames" -}}
{{- $name := include "flexfeed.fullname" . }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
fullnameOverride: names of Services begin with a letter, and those of this release would begin with {{ $name | quote }}: set it, or choose another name for the release
{{- end }}
{{- range $address := prepend (default list .Values.relay.addresses) .Values.publicAddress }}
{{- with include "flexfeed.port" (default "" $address) }}
{{- if or (lt (int .) 1) (gt (int .) 65535) }}
{{ $address }}: ports are from 1 to 65535
{{- end }}
{{- end }}
{{- end }}
{{- $values := .Values }}
{{- if not (or $values.source.enabled $values.console.enabled $values.receiver.enabled (and $values.relay.enabled (eq $values.relay.mode "daemonset"))) }}
nothing is enabled: set source.enabled, console.enabled, receiver.enabled, or relay.enabled with relay.mode daemonset
{{- end }}
{{- if $values.image.tag }}
{{- $programs := list }}
{{- if $values.source.enabled }}{{ $programs = append $programs "source" }}{{ end }}
{{- if and $values.relay.enabled (or $values.source.enabled (eq $values.relay.mode "daemonset")) }}{{ $programs = append $programs "relay" }}{{ end }}
{{- if include "flexfeed.consoleApart" . }}{{ $programs = append $programs "console" }}{{ end }}
{{- if $values.receiver.enabled }}{{ $programs = append $programs "receiver" }}{{ end }}
{{- $tagged := false }}
{{- range $programs }}{{ if not (index $values.image.digests .) }}{{ $tagged = true }}{{ end }}{{ end }}
{{- if and $programs (not $tagged) }}
image.tag: every program has a digest, which overrides it: set other digests, or leave one of them out
{{- end }}
{{- end }}
{{- if and $values.serviceAccount.annotations (not $values.serviceAccount.create) }}
serviceAccount.annotations: serviceAccount.create=false creates no ServiceAccount: annotate your own
{{- end }}
{{- end -}}

{{/* Labels by which the chart selects pods, or that it gives to all of its objects. */}}
{{- define "flexfeed.wrongLabels" -}}
{{- $values := .Values }}
{{- $selecting := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" }}
{{- $own := concat $selecting (list "app.kubernetes.io/version" "app.kubernetes.io/part-of" "app.kubernetes.io/managed-by" "helm.sh/chart") }}
{{- $given := dict
  "commonLabels" (list $values.commonLabels $own)
  "serviceMonitor.labels" (list $values.serviceMonitor.labels $own)
  "prometheusRule.labels" (list $values.prometheusRule.labels $own)
  "dashboard.labels" (list $values.dashboard.labels $own)
  "database.bundled.podLabels" (list $values.database.bundled.podLabels $selecting)
}}
{{- range list "source" "relay" "console" "receiver" }}
{{- $_ := set $given (printf "%s.podLabels" .) (list (index $values .).podLabels $selecting) }}
{{- end }}
{{- range $path, $both := $given }}
{{- range $key, $_ := index $both 0 }}
{{- if has $key (index $both 1) }}
{{ $path }}: {{ $key }} is the chart's own: choose another key
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
