{{/* Checks of single parts: each returns its mistakes, one per line. */}}

{{- define "flexfeed.wrongDatabase" -}}
{{- $database := .Values.database }}
{{- $sqlite := eq $database.mode "sqlite" }}
{{- if and (eq $database.mode "external") (include "flexfeed.needsDatabase" .) (not $database.existingSecret) (not $database.url) }}
database: mode external needs database.existingSecret (a Secret with the URL) or database.url
{{- end }}
{{- if and $database.existingSecret $database.url }}
database: leave out database.url or database.existingSecret
{{- end }}
{{- if and $database.url (ne $database.mode "external") }}
database.url: mode {{ $database.mode }} does not use it: set database.mode=external, or leave the URL out
{{- end }}
{{- if and $database.existingSecret $sqlite }}
database.existingSecret: mode sqlite does not use it: set database.mode to external or bundled, or leave the Secret out
{{- end }}
{{- if and $database.caKey (or (ne $database.mode "external") (not $database.existingSecret)) }}
database.caKey: it is a key of database.existingSecret with database.mode external: set these, or leave it out
{{- end }}
{{- if and $database.caKey (eq $database.caKey $database.urlKey) }}
database.caKey: URL and certificate need keys of their own: choose another than database.urlKey
{{- end }}
{{- if and $database.bundled.password (ne $database.mode "bundled") }}
database.bundled.password: mode {{ $database.mode }} does not use it: leave it out
{{- end }}
{{- if and $database.bundled.password $database.existingSecret }}
database.bundled.password: database.existingSecret has the password: leave one of them out
{{- end }}
{{- if and (include "flexfeed.bundled" .) (eq $database.urlKey $database.passwordKey) }}
database.passwordKey: URL and password need keys of their own: choose another than database.urlKey
{{- end }}
{{- if and .Values.console.enabled $sqlite (not .Values.source.enabled) }}
console.enabled: with database.mode sqlite it is inside the source, which source.enabled=false disables
{{- end }}
{{- if and $sqlite (not .Values.source.persistence.enabled) .Values.source.enabled }}
source.persistence.enabled: with database.mode sqlite the volume contains all data: set it to true
{{- end }}
{{- end -}}

{{- define "flexfeed.wrongSource" -}}
{{- $source := .Values.source }}
{{- if $source.enabled }}
{{- $several := gt (int $source.replicas) 1 }}
{{- if and $several (eq .Values.database.mode "sqlite") }}
source.replicas: a database in a file is for one source; set database.mode to bundled or external
{{- end }}
{{- if and $several (not $source.tls.existingSecret) }}
source.replicas: all sources have to show receivers the same certificate; put one into a Secret and name it in source.tls.existingSecret
{{- end }}
{{- if and $several (not $source.signingKey.existingSecret) }}
source.replicas: all sources have to sign updates with the same key; put one into a Secret (`openssl rand -out signing.key 32`, `kubectl create secret generic NAME --from-file=signing.key`) and name it in source.signingKey.existingSecret
{{- end }}
{{- $names := dict }}
{{- range $source.channels }}
{{- if hasKey $names .name }}
source.channels: {{ .name }} is there twice: list all of its feeds in one place
{{- end }}
{{- $_ := set $names .name true }}
{{- end }}
{{- if $source.existingConfigSecret }}
{{- range list "contact" "retention" "retentionAge" "settings" }}
{{- if index $source . }}
source.{{ . }}: source.existingConfigSecret has the settings: put this into its source.toml
{{- end }}
{{- end }}
{{- if and $several (include "flexfeed.sidecar" .) (or (include "flexfeed.serviceEach" .) .Values.relay.addresses) }}
source.existingConfigSecret: several sources announce a relay each, which one file cannot express: leave it out, or set relay.mode=daemonset
{{- end }}
{{- end }}
{{- $ports := list (int $source.httpPort) }}
{{- if include "flexfeed.sidecar" . }}{{ $ports = append $ports (int .Values.relay.httpPort) }}{{ end }}
{{- if include "flexfeed.consoleInside" . }}{{ $ports = append $ports (int .Values.console.httpPort) }}{{ end }}
{{- if ne (len $ports) (len (uniq $ports)) }}
source.httpPort: source, relay and console of one pod need ports of their own; source.httpPort is {{ int $source.httpPort }}, relay.httpPort {{ int .Values.relay.httpPort }}, console.httpPort {{ int .Values.console.httpPort }}
{{- end }}
{{- if and $source.httpLocal (not $source.hostNetwork) }}
source.httpLocal: only for source.hostNetwork: in a network of its own no probe could reach the pod
{{- end }}
{{- end }}
{{- end -}}

{{- define "flexfeed.wrongSourceService" -}}
{{- $service := .Values.source.service }}
{{- if .Values.source.enabled }}
{{- $sidecar := include "flexfeed.sidecar" . }}
{{- $each := include "flexfeed.serviceEach" . }}
{{- if and $sidecar (eq (int $service.port) (int $service.relayPort)) }}
source.service.relayPort: source and relay are two UDP ports of one Service: choose another than source.service.port
{{- end }}
{{- if and $sidecar $service.nodePort (eq (int $service.nodePort) (int $service.relayNodePort)) }}
source.service.relayNodePort: choose another than source.service.nodePort
{{- end }}
{{- range list "nodePort" "relayNodePort" }}
{{- if index $service . }}
{{- if eq $service.type "ClusterIP" }}
source.service.{{ . }}: type ClusterIP has no node ports: set source.service.type=NodePort, or leave it out
{{- else if $each }}
source.service.{{ . }}: each of several sources has a Service of its own, which cannot all have this port: leave it out, or set source.service.type=NodePort
{{- end }}
{{- end }}
{{- end }}
{{- if and $service.relayNodePort (not $sidecar) }}
source.service.relayNodePort: there is no relay alongside the source: leave it out
{{- end }}
{{- if and (gt (int .Values.source.replicas) 1) (eq $service.type "NodePort") (eq $service.externalTrafficPolicy "Cluster") }}
source.service.externalTrafficPolicy: with several sources and type NodePort, a node's port has to lead to the node's own source and relay: set it to Local
{{- end }}
{{- range list "loadBalancerClass" "loadBalancerIPs" "loadBalancerSourceRanges" }}
{{- if and (index $service .) (ne $service.type "LoadBalancer") }}
source.service.{{ . }}: type {{ $service.type }} has no load balancer: set source.service.type=LoadBalancer, or leave it out
{{- end }}
{{- end }}
{{- if and (eq $service.type "LoadBalancer") (gt (len (default list $service.loadBalancerIPs)) (int .Values.source.replicas)) }}
source.service.loadBalancerIPs: there are more addresses than sources ({{ int .Values.source.replicas }})
{{- end }}
{{- end }}
{{- end -}}

{{- define "flexfeed.wrongRelay" -}}
{{- $relay := .Values.relay }}
{{- $count := len (default list $relay.addresses) }}
{{- $replicas := int .Values.source.replicas }}
{{- if and $count .Values.source.enabled (include "flexfeed.relaysSaid" .) }}
relay.addresses: source.settings.amt_relay is the complete list (it is empty, or contains the relay alongside the source): leave one of them out
{{- end }}
{{- if and $count (not $relay.enabled) }}
relay.addresses: relay.enabled=false disables them: set relays of other releases in source.settings.amt_relay
{{- end }}
{{- if $relay.enabled }}
{{- if include "flexfeed.sidecar" . }}
{{- range list "podAnnotations" "podLabels" "tolerations" "affinity" "priorityClassName" "nativeInterface" }}
{{- if index $relay . }}
relay.{{ . }}: with relay.mode sidecar the relay is in the source's pod: use the source's value, or set relay.mode=daemonset
{{- end }}
{{- end }}
{{- if gt $replicas 1 }}
{{- if and (ne $count $replicas) (or $count (include "flexfeed.serviceEach" .)) }}
relay.addresses: with several sources, list the address of each one's Service, in their order, because each has a relay of its own
{{- end }}
{{- else if gt $count 1 }}
relay.addresses: the only source has one relay alongside it, so one address is enough: set other relays in source.settings.amt_relay
{{- end }}
{{- if and $relay.httpLocal (not .Values.source.hostNetwork) }}
relay.httpLocal: only for the network of nodes (source.hostNetwork, or relay.mode daemonset): in a network of its own no probe could reach the pod
{{- end }}
{{- else if and $count (eq $relay.mode "daemonset") (not .Values.source.enabled) }}
relay.addresses: this release has no source that could announce them: set them in the settings of the source that is elsewhere (amt_relay)
{{- end }}
{{- end }}
{{- end -}}

{{/* Ports of groups that relays with ordinary sockets would not receive. */}}
{{- define "flexfeed.wrongGroups" -}}
{{- $relay := .Values.relay }}
{{- $source := .Values.source }}
{{- if and $relay.enabled $source.enabled (not $source.existingConfigSecret) (or (eq $relay.mode "sidecar") (not $relay.capture)) }}
{{- $ports := list }}
{{- range $relay.udpPorts }}{{ $ports = append $ports (int .) }}{{ end }}
{{- range $channel := $source.channels }}
{{- /* Channels without groups of their own have the source's. */}}
{{- range default (list "232.70.70.1:4434") $channel.groups }}
{{- if not (has (regexFind "[0-9]+$" . | int) $ports) }}
relay.udpPorts: the relay would not receive {{ . }} of the channel {{ $channel.name }}: name port {{ regexFind "[0-9]+$" . }} as well
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "flexfeed.wrongConsole" -}}
{{- $console := .Values.console }}
{{- range list "ingress" "httpRoute" }}
{{- if and (index $console .).enabled (not $console.enabled) }}
console.{{ . }}.enabled: console.enabled=false disables its backend
{{- end }}
{{- end }}
{{- if and $console.ingress.enabled (not $console.ingress.host) }}
console.ingress.host: set the host name that people type
{{- end }}
{{- if and $console.httpRoute.enabled (not $console.httpRoute.parentRefs) }}
console.httpRoute.parentRefs: set the Gateway
{{- end }}
{{- if and $console.enabled $console.httpLocal }}
{{- if not (and (include "flexfeed.consoleInside" .) .Values.source.hostNetwork) }}
console.httpLocal: only for a console in the network of a node (database.mode sqlite with source.hostNetwork): in a network of its own no client could reach it
{{- end }}
{{- range list "ingress" "httpRoute" }}
{{- if (index $console .).enabled }}
console.{{ . }}.enabled: console.httpLocal=true disables the Service behind it
{{- end }}
{{- end }}
{{- end }}
{{- if include "flexfeed.consoleInside" . }}
{{- if gt (int $console.replicas) 1 }}
console.replicas: with database.mode sqlite the console is inside the one source: set database.mode to bundled or external
{{- end }}
{{- range list "settings" "podAnnotations" "podLabels" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "extraEnv" }}
{{- if index $console . }}
console.{{ . }}: with database.mode sqlite the console is inside the source and has no pod of its own: {{ if eq . "settings" }}leave it out, or set database.mode to bundled or external{{ else }}use source.{{ . }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "flexfeed.wrongReceiver" -}}
{{- $receiver := .Values.receiver }}
{{- if and $receiver.link $receiver.existingSecret }}
receiver: leave out receiver.link or receiver.existingSecret
{{- end }}
{{- if and $receiver.link (not $receiver.enabled) }}
receiver.link: set receiver.enabled=true as well, or leave the link out
{{- end }}
{{- if $receiver.enabled }}
{{- if and (not $receiver.link) (not $receiver.existingSecret) }}
receiver: it needs an enrolment link: receiver.existingSecret (a Secret with it) or receiver.link
{{- end }}
{{- if and $receiver.persistence.hostPath (ne $receiver.kind "DaemonSet") }}
receiver.persistence.hostPath: a StatefulSet has a volume: set receiver.kind=DaemonSet, or leave it out
{{- end }}
{{- if and $receiver.persistence.storageClass (eq $receiver.kind "DaemonSet") }}
receiver.persistence.storageClass: a DaemonSet has no volumes: give it a folder of the nodes (receiver.persistence.hostPath)
{{- end }}
{{- if and $receiver.httpLocal (not $receiver.hostNetwork) }}
receiver.httpLocal: only for receiver.hostNetwork: in a network of its own no probe could reach the pod
{{- end }}
{{- end }}
{{- end -}}
