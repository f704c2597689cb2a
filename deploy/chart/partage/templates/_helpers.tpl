{{- /* What several templates need: labels, images, the agent's places. Nothing here makes an object. */ -}}

{{- define "partage.labels" -}}
{{ toJson (merge (dict "app.kubernetes.io/part-of" "partage") .Values.labels) }}
{{- end -}}

{{- /* Labels of one part and its pods: (dict "root" $ "name" "partage-agent" "more" podLabels). */ -}}
{{- define "partage.labelsOf" -}}
{{ toJson (merge (dict "app.kubernetes.io/part-of" "partage" "app.kubernetes.io/name" .name) (.more | default dict) .root.Values.labels) }}
{{- end -}}

{{- /* An image of ours: (dict "root" $ "image" .Values.agent.image). */ -}}
{{- define "partage.image" -}}
{{- with .root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end -}}

{{- /* The runtime class of the agent, empty for none. */ -}}
{{- define "partage.runtimeClass" -}}
{{- if ne .Values.agent.runtimeClassName "auto" }}{{ .Values.agent.runtimeClassName }}
{{- else if lookup "node.k8s.io/v1" "RuntimeClass" "" "nvidia" }}nvidia{{ end }}
{{- end -}}

{{- /* The agent's configuration as its file: what the values say, and that cards are simulated. */ -}}
{{- define "partage.agentConfig" -}}
{{- $config := dict "apiVersion" "config.partage.io/v1alpha1" "kind" "AgentConfiguration" -}}
{{- if .Values.agent.simulated.profile }}{{ $_ := set $config "driver" "simulated" }}{{ end -}}
{{ toYaml (merge $config (deepCopy (.Values.agent.config | default dict))) }}
{{- end -}}

{{- /* Where things lie on the host: the agent's `places` with its defaults, `drivers`, where the driver and the devices
lie, each with the place at which the agent sees it, and `specs`, where CDI specs are read only. The configuration is
the one place that says it. */ -}}
{{- define "partage.places" -}}
{{- $agent := .Values.agent.config | default dict -}}
{{- $nvidia := $agent.nvidia | default dict -}}
{{- $places := merge (dict) ($agent.places | default dict) (dict
  "root" "/run/partage" "cdi" "/var/run/cdi" "kubelet" "/var/lib/kubelet"
  "plugins" "/var/lib/kubelet/device-plugins" "library" "/usr/local/lib/partage" "locks" "/run/lock") -}}
{{- $driver := $nvidia.driverRoot | default "/" -}}
{{- $dev := $nvidia.devRoot | default "/" -}}
{{- $driverHere := $nvidia.driverRootInAgent | default $driver -}}
{{- $devHere := $nvidia.devRootInAgent | default $dev -}}
{{- if and (eq $driverHere $devHere) (ne $driver $dev) -}}
{{- fail (printf "agent.config.nvidia: %s and %s of the host are both to be at %s in the agent" $driver $dev $devHere) -}}
{{- end -}}
{{- $drivers := dict -}}
{{- if ne $driverHere "/" }}{{ $_ := set $drivers "driver-root" (dict "host" $driver "here" $driverHere) }}{{ end -}}
{{- if and (ne $devHere "/") (ne $devHere $driverHere) -}}
{{- $_ := set $drivers "device-root" (dict "host" $dev "here" $devHere) -}}
{{- end -}}
{{- $specs := list -}}
{{- range without (uniq ($nvidia.cdiSpecs | default (list "/etc/cdi" "/var/run/cdi"))) $places.cdi -}}
{{- $specs = append $specs . -}}
{{- end -}}
{{- toYaml (merge (dict "drivers" $drivers "specs" $specs) $places) -}}
{{- end -}}

{{- /* kube-scheduler's image: of the cluster's own version, without what its vendor added to it. */ -}}
{{- define "partage.kubeScheduler" -}}
{{- $image := .Values.scheduler.kubeScheduler.image -}}
{{- $version := regexFind "^v?[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{ $image.repository }}:{{ $image.tag | default (printf "v%s" (trimPrefix "v" $version)) }}
{{- end -}}

{{- /* The scheduler's configuration as its file; what the chart decides itself goes before the values. */ -}}
{{- define "partage.schedulerConfig" -}}
{{- $config := dict "apiVersion" "config.partage.io/v1alpha1" "kind" "SchedulerConfiguration" "ask" .Values.ask
  "election" (dict "lease" (printf "%s/partage-scheduler" .Release.Namespace)
    "metrics" (printf "https://127.0.0.1:%d/metrics" (int .Values.scheduler.kubeScheduler.port))) -}}
{{- with .Values.scheduler.alsoKnownAs -}}
{{- $_ := set $config "schedulers" (prepend . "partage-scheduler") -}}
{{- end -}}
{{ toYaml (merge $config (deepCopy (.Values.scheduler.config | default dict))) }}
{{- end -}}

{{- /* The webhook's configuration as its file. */ -}}
{{- define "partage.webhookConfig" -}}
{{- $scheduler := printf "system:serviceaccount:%s:partage-scheduler" .Release.Namespace -}}
{{- $config := dict "apiVersion" "config.partage.io/v1alpha1" "kind" "WebhookConfiguration" "ask" .Values.ask
  "alsoKnownAs" .Values.scheduler.alsoKnownAs
  "writers" (prepend .Values.policies.writers $scheduler) "tls" (dict "namespace" .Release.Namespace) -}}
{{- if .Values.webhook.certificates.secret -}}
{{- $_ := set $config "tls" (dict "certificate" "/etc/partage-certificates/tls.crt"
  "privateKey" "/etc/partage-certificates/tls.key") -}}
{{- end -}}
{{- $values := deepCopy (.Values.webhook.config | default dict) -}}
{{- if not (hasKey $values "priorityClasses") }}{{ $_ := set $config "priorityClasses" .Values.priorityClasses.create }}{{ end -}}
{{ toYaml (merge $config $values) }}
{{- end -}}

{{- /* Who tells the webhook configurations what signs its certificates, where that is not the webhook: an annotation. */ -}}
{{- define "partage.caAnnotations" -}}
{{- $given := .Values.webhook.certificates -}}
{{- if and $given.secret (not (or $given.injectCaFrom $given.caBundle)) -}}
{{- fail "webhook.certificates: secret is given; injectCaFrom or caBundle must say what signs its certificate" -}}
{{- end -}}
{{- if and $given.injectCaFrom $given.caBundle -}}
{{- fail "webhook.certificates: injectCaFrom and caBundle are given; one of them is to be left empty" -}}
{{- end -}}
{{- if and (or $given.injectCaFrom $given.caBundle) (not $given.secret) -}}
{{- fail "webhook.certificates: injectCaFrom or caBundle is given; secret must say where the certificate is" -}}
{{- end -}}
{{- with $given.injectCaFrom }}
  annotations: {cert-manager.io/inject-ca-from: {{ . }}}
{{- end -}}
{{- end -}}
